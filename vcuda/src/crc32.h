/* crc32.h: CRC-32 as in zlib, for records small enough that a table would cost more than it saves. */
#ifndef VCUDA_CRC32_H
#define VCUDA_CRC32_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t crc32_of(const void *data, size_t size)
{
    static const uint32_t nibble[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
                                        0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                        0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
    const unsigned char *bytes = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc = (crc >> 4) ^ nibble[(crc ^ bytes[i]) & 15];
        crc = (crc >> 4) ^ nibble[(crc ^ (uint32_t)(bytes[i] >> 4)) & 15];
    }
    return ~crc;
}

#endif
