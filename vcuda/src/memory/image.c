/* image.c: reads PTX text (PTX ISA, "State Spaces" and "Arrays"), ELF files of GPU code, in which variables are the sections
 * ".nv.global", and fat binaries of both (fatbinary_section.h of the toolkit, and what public readers of them found). */
#include "memory/image.h"

#include <elf.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define FAT_MAGIC 0xba55ed50u
#define MOST_SECTIONS 65536u
#define COMPRESSED 0xa000u /* by LZ4 or zstd */

enum { KIND_TEXT = 1 };

struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *others;
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size; /* of what follows it */
};

struct fat_entry {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size; /* of what follows it */
    uint32_t unknown[6];
    uint64_t flags;
};

static uint64_t sum(uint64_t one, uint64_t other)
{
    uint64_t both;
    return __builtin_add_overflow(one, other, &both) ? UINT64_MAX : both;
}

static uint64_t product(uint64_t one, uint64_t other)
{
    uint64_t both;
    return __builtin_mul_overflow(one, other, &both) ? UINT64_MAX : both;
}

/* Copies `bytes` from a place in the image; false when they are not in it. */
static bool copy(void *to, const unsigned char *image, size_t size, uint64_t at, size_t bytes)
{
    if (at > size || bytes > size - at)
        return false;
    memcpy(to, image + at, bytes);
    return true;
}

static uint64_t of_elf(const unsigned char *image, size_t size)
{
    static const char prefix[] = ".nv.global";
    Elf64_Ehdr head;
    Elf64_Shdr names, section;
    char name[sizeof prefix - 1];
    uint64_t bytes = 0;
    if (!copy(&head, image, size, 0, sizeof head) || head.e_ident[EI_CLASS] != ELFCLASS64 ||
        head.e_shentsize != sizeof section || head.e_shoff > size ||
        !copy(&names, image, size, head.e_shoff + (uint64_t)head.e_shstrndx * sizeof names, sizeof names))
        return 0;
    for (uint64_t i = 0; i < head.e_shnum && i < MOST_SECTIONS; i++)
        if (copy(&section, image, size, head.e_shoff + i * sizeof section, sizeof section) && names.sh_offset <= size &&
            copy(name, image, size, names.sh_offset + section.sh_name, sizeof name) && memcmp(name, prefix, sizeof name) == 0)
            bytes = sum(bytes, section.sh_size);
    return bytes;
}

/* PTX, word by word. */
struct text {
    const char *at, *end;
};

struct word {
    const char *at;
    size_t length; /* 0: the text is over */
};

static bool is_in_word(char letter)
{
    return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           letter == '_' || letter == '$' || letter == '%' || letter == '.';
}

static void skip_until(struct text *text, const char *mark)
{
    size_t length = strlen(mark);
    while ((size_t)(text->end - text->at) >= length && memcmp(text->at, mark, length) != 0)
        text->at++;
    text->at = (size_t)(text->end - text->at) >= length ? text->at + length : text->end;
}

/* Names, directives and numbers are one word each, and so is every other letter. Comments and strings are none. */
static struct word next_word(struct text *text)
{
    while (text->at < text->end) {
        size_t left = (size_t)(text->end - text->at);
        const char *at = text->at;
        if (left > 1 && at[0] == '/' && at[1] == '/') {
            skip_until(text, "\n");
        } else if (left > 1 && at[0] == '/' && at[1] == '*') {
            text->at += 2;
            skip_until(text, "*/");
        } else if (at[0] == '"') {
            text->at++;
            skip_until(text, "\"");
        } else if (is_in_word(at[0])) {
            while (text->at < text->end && is_in_word(*text->at))
                text->at++;
            return (struct word){at, (size_t)(text->at - at)};
        } else if (at[0] == ' ' || (at[0] >= '\t' && at[0] <= '\r')) {
            text->at++;
        } else {
            text->at++;
            return (struct word){at, 1};
        }
    }
    return (struct word){text->end, 0};
}

static bool is(struct word word, const char *what)
{
    return word.length == strlen(what) && memcmp(word.at, what, word.length) == 0;
}

static uint64_t number_of(struct word word)
{
    char digits[24] = "";
    memcpy(digits, word.at, word.length < sizeof digits - 1 ? word.length : sizeof digits - 1);
    return strtoull(digits, NULL, 0);
}

/* Bytes of a fundamental type: ".u32", ".f16x2"; 0: it is none. */
static uint64_t type_of(struct word word)
{
    static const char letters[] = "bsuf";
    char text[8] = "", *end;
    if (word.length < 3 || word.length >= sizeof text)
        return 0;
    memcpy(text, word.at, word.length);
    const char *digits = strncmp(text, ".bf", 3) == 0 ? text + 3 : text + 2;
    if (text[0] != '.' || strchr(letters, text[1]) == NULL)
        return 0;
    uint64_t bits = strtoul(digits, &end, 10);
    return (*end == 'x' ? 2 * bits : *end == '\0' ? bits : 0) / 8;
}

/* A declaration under way, outside of functions. */
struct declaration {
    bool global, external, named;
    uint64_t type, vector; /* bytes, and how many of them */
    uint64_t count;        /* of the variable that is being named */
    uint64_t bytes;        /* of those that are complete */
};

static const struct declaration nothing = {.vector = 1, .count = 1};

static void complete(struct declaration *declaration)
{
    if (declaration->named && declaration->global && !declaration->external)
        declaration->bytes = sum(declaration->bytes, product(declaration->count, declaration->type * declaration->vector));
    declaration->named = false;
    declaration->count = 1;
}

static void take(struct declaration *declaration, struct word word)
{
    if (is(word, ".global"))
        declaration->global = true;
    else if (is(word, ".extern"))
        declaration->external = true;
    else if (is(word, ".v2") || is(word, ".v4"))
        declaration->vector = (uint64_t)(word.at[2] - '0');
    else if (word.at[0] == '.' && declaration->global && declaration->type == 0)
        declaration->type = type_of(word);
    else if (is(word, ","))
        complete(declaration);
    else if (declaration->type != 0 && word.length != 0 && is_in_word(word.at[0]) && word.at[0] > '9')
        declaration->named = true;
}

static uint64_t of_text(const char *image, size_t size)
{
    struct text text = {image, image + size};
    struct declaration declaration = nothing;
    uint64_t bytes = 0;
    unsigned depth = 0;  /* of braces and parentheses: functions, their parameters, and what variables begin with */
    bool within = false; /* brackets: the size of an array */
    for (struct word word = next_word(&text); word.length != 0; word = next_word(&text)) {
        if (is(word, "{") || is(word, "(")) {
            depth++;
        } else if (is(word, "}") || is(word, ")")) {
            depth -= depth != 0;
            if (depth == 0 && is(word, "}") && !declaration.global) /* a function ends, and a declaration does not */
                declaration = nothing;
        } else if (depth != 0) {
            continue;
        } else if (is(word, ";")) {
            complete(&declaration);
            bytes = sum(bytes, declaration.bytes);
            declaration = nothing;
        } else if (is(word, "[") || is(word, "]")) {
            within = is(word, "[");
        } else if (within) {
            declaration.count = product(declaration.count, number_of(word));
        } else {
            take(&declaration, word);
        }
    }
    return bytes;
}

static bool is_elf(const unsigned char *image, size_t size)
{
    char magic[SELFMAG];
    return copy(magic, image, size, 0, sizeof magic) && memcmp(magic, ELFMAG, SELFMAG) == 0;
}

static uint64_t of_fat(const unsigned char *image, size_t size)
{
    struct fat_header head;
    struct fat_entry entry;
    uint64_t most = 0;
    if (!copy(&head, image, size, 0, sizeof head) || head.header_size < sizeof head)
        return 0;
    uint64_t end = sum(head.header_size, head.size), at = head.header_size;
    if (end < size)
        size = end;
    while (copy(&entry, image, size, at, sizeof entry) && entry.header_size >= sizeof entry) {
        uint64_t from = at + entry.header_size, to = sum(from, entry.size);
        if (to > size || to <= at)
            break;
        const unsigned char *part = image + from;
        uint64_t bytes = is_elf(part, entry.size)                                     ? of_elf(part, entry.size)
                         : entry.kind == KIND_TEXT && (entry.flags & COMPRESSED) == 0 ? of_text((const char *)part, entry.size)
                                                                                      : 0;
        most = bytes > most ? bytes : most;
        at = to;
    }
    return most;
}

uint64_t image_variables(const void *image, size_t size)
{
    uint32_t magic;
    static const size_t least = sizeof magic;
    const char *text = image;
    if (image == NULL || size == 0)
        return 0;
    if (text[0] == '.' || text[0] == '/' || text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r'))
        return of_text(text, strnlen(text, size));
    if (size < least || strnlen(text, least) < least) /* no known image has a zero among its first bytes */
        return 0;
    memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER_MAGIC && size == IMAGE_ENDS_ITSELF) {
        struct wrapper wrapper;
        memcpy(&wrapper, image, sizeof wrapper);
        image = wrapper.data;
        if (image == NULL)
            return 0;
        memcpy(&magic, image, sizeof magic);
    }
    if (magic == FAT_MAGIC)
        return of_fat(image, size);
    return is_elf(image, size) ? of_elf(image, size) : 0;
}
