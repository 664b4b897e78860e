/* store_table.c: see store_table.h. */
#include "comm/store_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t bucket_of(const char *key) {
    uint64_t h = 1469598103934665603u; /* FNV-1a. */
    for (; *key != '\0'; key++) {
        h = (h ^ (unsigned char)*key) * 1099511628211u;
    }
    return h % LT_STORE_BUCKETS;
}

lt_comm_store_entry *lt_comm_store_table_find(const lt_comm_store_table *t, const char *key) {
    lt_comm_store_entry *e = t->buckets[bucket_of(key)];
    while (e != NULL && strcmp(e->key, key) != 0) {
        e = e->next;
    }
    return e;
}

lt_comm_store_status lt_comm_store_table_set(lt_comm_store_table *t, const char *key,
                                             const void *value, size_t bytes) {
    lt_comm_store_entry *e = lt_comm_store_table_find(t, key);
    const size_t before = e != NULL ? e->bytes : 0, key_bytes = e != NULL ? 0 : strlen(key);
    unsigned char *copy;
    if ((e == NULL && t->n_keys >= LT_STORE_KEYS) ||
        t->bytes - before + bytes + key_bytes > LT_STORE_BYTES) {
        return LT_STORE_FULL;
    }
    copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL || (e == NULL && (e = calloc(1, sizeof *e)) == NULL)) {
        free(copy);
        return LT_STORE_FULL;
    }
    if (e->version == 0) {
        const size_t b = bucket_of(key);
        (void)snprintf(e->key, sizeof e->key, "%s", key);
        e->next = t->buckets[b];
        t->buckets[b] = e;
        t->n_keys++;
    }
    if (bytes > 0) {
        memcpy(copy, value, bytes);
    }
    free(e->value);
    e->value = copy;
    e->bytes = bytes;
    e->version = ++t->version;
    t->bytes += bytes + key_bytes - before;
    return LT_STORE_OK;
}

lt_comm_store_status lt_comm_store_table_add(lt_comm_store_table *t, const char *key,
                                             int64_t number, int64_t *sum) {
    const lt_comm_store_entry *e = lt_comm_store_table_find(t, key);
    int64_t now = 0;
    if (e != NULL && e->bytes != sizeof now) {
        return LT_STORE_REFUSED;
    }
    if (e != NULL) {
        memcpy(&now, e->value, sizeof now);
    }
    *sum = (int64_t)((uint64_t)now + (uint64_t)number);
    return lt_comm_store_table_set(t, key, sum, sizeof *sum);
}

void lt_comm_store_table_clear(lt_comm_store_table *t) {
    for (size_t b = 0; b < LT_STORE_BUCKETS; b++) {
        while (t->buckets[b] != NULL) {
            lt_comm_store_entry *e = t->buckets[b];
            t->buckets[b] = e->next;
            free(e->value);
            free(e);
        }
    }
    t->n_keys = 0;
    t->bytes = 0;
}
