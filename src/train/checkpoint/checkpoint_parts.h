/* checkpoint_parts.h: the tensors of a checkpoint as files of boxes, for checkpoint.c.
 *
 * Each part (a rank's share, or everything) writes a file for the weights and one for each moment.
 * A tensor of a file is one box of one parameter. It has the name of the parameter if it is all of
 * it, else "parameter#k" for the k-th of the part's boxes. A single part writes weights.safetensors
 * and no manifest of its own; of several, part 2 of 8 writes weights-00002-of-00008.safetensors and
 *
 *   part-00002-of-00008.json   {"format": "lateen-checkpoint-part", "part": 2, "parts": 8,
 *                               "files": [{"name", "bytes", "xxh3"}],
 *                               "boxes": {name: {"shape": [of the whole],
 *                                                "boxes": [[[first, ...], [extent, ...]], ...]}}}
 *
 * Read by any other partition: a box that is needed is put together from all boxes that touch it,
 * and only files that hold one of these are checked and read. The boxes of all parts must cover
 * every parameter once; the same box in several parts (replicas) counts once. */
#ifndef LT_TRAIN_CHECKPOINT_PARTS_H
#define LT_TRAIN_CHECKPOINT_PARTS_H

#include <jansson.h>

#include "model/params.h"
#include "parallel/layout.h"

#define LT_PART_NAME_BYTES 64
#define LT_MAX_PARTS       65536

void lt_part_file(char name[LT_PART_NAME_BYTES], const char *stem, int part, int n_parts,
                  const char *ending);

/* Append a manifest's entry for a file to `files`; and compare a file with its entry. */
LT_MUST_USE lt_err lt_part_list_file(json_t *files, const char *folder, const char *name,
                                     uint64_t hash);
LT_MUST_USE lt_err lt_part_check_entry(const json_t *entry, const char *what);
LT_MUST_USE lt_err lt_part_check_file(const char *folder, const json_t *entry);

/* The boxes of a table that are written: those for which this rank answers. */
typedef struct {
    const lt_param_table *table;
    const lt_layout *layout; /* NULL: every box. */
} lt_part_boxes;
bool lt_part_writes(const lt_part_boxes *w, const lt_param *p, const lt_box *box);

/* Write the held part of a buffer over the table, in the memory of m, to folder/name. NUMERIC: a
 * number is not finite. */
LT_MUST_USE lt_err lt_part_write_buffer(json_t *files, const char *folder, const char *name,
                                        const lt_model *m, const lt_part_boxes *w,
                                        const lt_param_buffer *b);
/* Write the part's own manifest, after its files; does not take a reference to `files`. */
LT_MUST_USE lt_err lt_part_write_manifest(const char *folder, json_t *files, int part, int n_parts,
                                          const lt_part_boxes *w);

/* One box of one parameter in the files of one part. */
typedef struct {
    int param, part, index;
    lt_box box;
    bool whole; /* It is the whole parameter. */
} lt_stored_box;

typedef struct {
    const char *folder; /* Owned by the caller. */
    int n_parts;
    json_t **manifests;   /* (n_parts); NULL: one part without a manifest of its own. */
    bool *needed;         /* (n_parts): the part has something that the table needs. */
    lt_stored_box *boxes; /* Sorted by parameter. */
    int *first;           /* (n_params + 1): index of each parameter's first box. */
    int n_boxes;
} lt_stored;

/* Find where everything is, for a model with this table. n_parts 0: one part, without a manifest.
 * STATE: it is of another model. FORMAT: it is broken, or its parts do not cover each parameter
 * once. */
LT_MUST_USE lt_err lt_stored_open(lt_stored *s, const char *folder, int n_parts,
                                  const lt_param_table *t);
void lt_stored_close(lt_stored *s);
/* Verify the checksums of all files that are needed. */
LT_MUST_USE lt_err lt_stored_verify(const lt_stored *s);
/* Read the part of a buffer that the table holds, from the files with this stem. */
LT_MUST_USE lt_err lt_stored_load(const lt_stored *s, const char *stem, const lt_model *m,
                                  const lt_param_table *t, const lt_param_buffer *b);

#endif
