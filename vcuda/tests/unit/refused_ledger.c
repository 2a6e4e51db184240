/* refused_ledger.c: a ledger of another version, opened a hundred times.
 *
 *     refused_ledger LEDGER      prints "REFUSED LEFT": how often it was refused, and how much of it this process still has
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "ledger/ledger.h"

static int mappings(const char *path)
{
    char line[1024];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, path) != NULL;
    if (maps != NULL)
        fclose(maps);
    return count;
}

static int descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

int main(int count, char **arguments)
{
    char reason[128];
    bool not_now;
    int refused = 0, open = descriptors();
    for (int i = 0; count == 2 && i < 100; i++)
        refused += ledger_open(arguments[1], reason, sizeof reason, &not_now) == NULL;
    printf("%d %d\n", refused, mappings(arguments[1]) + descriptors() - open);
    return 0;
}
