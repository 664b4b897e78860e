/* store_table.h: the store's keys: a hash table of bounded size. */
#ifndef LT_COMM_STORE_TABLE_H
#define LT_COMM_STORE_TABLE_H

#include "comm/store.h"

#define LT_STORE_BUCKETS 1024

typedef struct lt_comm_store_entry {
    struct lt_comm_store_entry *next;
    char key[LT_STORE_KEY + 1];
    unsigned char *value;
    size_t bytes;
    uint64_t version;
} lt_comm_store_entry;

typedef struct {
    lt_comm_store_entry *buckets[LT_STORE_BUCKETS];
    size_t n_keys, bytes; /* bytes: of keys and values. */
    uint64_t version;     /* Version of the newest change; never decreases. */
} lt_comm_store_table;

lt_comm_store_entry *lt_comm_store_table_find(const lt_comm_store_table *t, const char *key);
/* FULL: there is no room, and nothing was changed. */
lt_comm_store_status lt_comm_store_table_set(lt_comm_store_table *t, const char *key,
                                             const void *value, size_t bytes);
/* Add `number` to the value, a number of 8 bytes, 0 where there is none. REFUSED: the value is not
 * a number. A sum wraps around. */
lt_comm_store_status lt_comm_store_table_add(lt_comm_store_table *t, const char *key,
                                             int64_t number, int64_t *sum);
void lt_comm_store_table_clear(lt_comm_store_table *t);

#endif
