/* unicode_tables.h: the generated tables behind unicode.h; made by tools/make_unicode_tables.py. */
#ifndef LT_DATA_UNICODE_TABLES_H
#define LT_DATA_UNICODE_TABLES_H

#include <stdint.h>

#define LT_UNICODE_BLOCK 128

extern const uint32_t lt_unicode_kind_flags[256]; /* LT_UNICODE_* by kind. */
/* Number of the block. */
extern const uint16_t lt_unicode_kind_index[0x110000 / LT_UNICODE_BLOCK];
extern const uint8_t lt_unicode_kind_blocks[]; /* Kind, by block and position in it. */

/* A mapping from[i] -> pool[start[i] .. start[i + 1]), from ascending. */
extern const uint32_t lt_unicode_nfd_from[], lt_unicode_nfd_pool[], lt_unicode_nfd_count;
extern const uint32_t lt_unicode_nfkd_from[], lt_unicode_nfkd_pool[], lt_unicode_nfkd_count;
extern const uint32_t lt_unicode_lower_from[], lt_unicode_lower_pool[], lt_unicode_lower_count;
extern const uint16_t lt_unicode_nfd_start[], lt_unicode_nfkd_start[], lt_unicode_lower_start[];

extern const uint32_t lt_unicode_ccc[]; /* Code point << 8 | combining class, ascending. */
extern const uint32_t lt_unicode_ccc_count;

extern const uint64_t lt_unicode_compose_from[]; /* First << 32 | second, ascending. */
extern const uint32_t lt_unicode_compose_to[], lt_unicode_compose_count;

extern const uint32_t lt_unicode_script_runs[]; /* First code point << 8 | script, ascending. */
extern const uint32_t lt_unicode_script_count;

#endif
