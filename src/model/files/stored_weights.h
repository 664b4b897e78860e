/* stored_weights.h: weights in the types of their file: matrices stay in the mapped file, or in a
 * copy with reordered rows; only vectors are in the flat buffer. On a GPU, matrices of block types
 * exist once, packed, or in the file's form if they are to be decoded; all other weights are in the
 * flat buffer. This serves inference, and training of adapters (decoded.h): the model itself cannot
 * be trained or saved.
 *
 * A parameter made of several tensors (q, k and v of qkv) has several ranges of rows, each with its
 * own type. On a backend that packs, ranges are packed at open, and ranges of one type become
 * one.
 *
 * A model that is to be decoded may be held in part (options.partition): its ranges are the held
 * rows or columns of the file's matrices, with the same numbers as in the whole. Blocks lie within
 * rows, so columns are cut between blocks, or not at all. The scales of NF4_DOUBLE belong to a
 * whole matrix, so a part of one is kept in NF4, with the scale that each block has in the
 * whole. */
#ifndef LT_MODEL_STORED_WEIGHTS_H
#define LT_MODEL_STORED_WEIGHTS_H

#include "model/names.h"
#include "model/files/source.h"

/* Find the weights that can stay as they are stored, fill m->stored, and close the gaps in the
 * table's offsets. With options.stored_as, every matrix that can be encoded in that type is;
 * UNSUPPORTED: none can. */
LT_MUST_USE lt_err lt_stored_weights_open(lt_model *m, const lt_source *source);
/* Bytes of the weights of a file that is opened with these options and `decoded`, on the host or on
 * a device: the result of lt_model_bytes for the open model. Reads only the file's head; o->device
 * is not needed. */
LT_MUST_USE lt_err lt_stored_weights_measure(size_t *out, const char *path,
                                             const lt_model_options *o, bool on_device);
bool lt_stored_weights_is_matrix(lt_param_kind kind);
/* Random matrices in options.stored_as, the values of lt_model_create, encoded. */
LT_MUST_USE lt_err lt_stored_weights_make(lt_model *m, uint64_t seed);
/* The matrix of the file, (rows, cols) in our order, of which a range holds the rows from `row` and
 * the columns from `col` on. type: the file's, which may differ from the range's. Its rows lie in
 * pairs as lt_weight_pair_rows describes. scales: of MXFP4 as transformers stores it. each: rows
 * [i each_rows, (i + 1) each_rows) begin at each[i]; NULL: data has all rows. copied: it is
 * copied although it could stay mapped, because most others are encoded, and the file need not stay
 * mapped then. doubled: a part of a matrix in NF4_DOUBLE. */
typedef struct {
    const char *name;
    const unsigned char *data, *scales;
    const unsigned char *const *each;
    int64_t each_rows;
    int64_t rows, cols, row, col, pair_rows;
    lt_dtype type;
    bool copied, doubled;
} lt_stored_origin;
/* stored_pack.c: place and pack the ranges in m->stored, whose data point to host memory (origins:
 * those of each parameter's ranges) or are random (origins NULL); then close the gaps in the
 * table's offsets. */
LT_MUST_USE lt_err lt_stored_weights_place(lt_model *m,
                                           const lt_stored_origin (*origins)[LT_STORED_RANGES],
                                           uint64_t seed);
/* Rows of the longest range, and as many ids 0, 1, ..., by which rows are decoded. */
int64_t lt_stored_most_rows(const lt_param_table *t, const lt_stored_weight *stored);
LT_MUST_USE lt_err lt_stored_number_rows(lt_model *m);
/* Bytes of the mapped files that become resident when the weights in this table are read. */
size_t lt_stored_mapped_bytes(const lt_source *source, const lt_param_table *t);
/* Whether this range must be copied on the host, and how many bytes it then takes. */
bool lt_stored_range_moves(const lt_weight_range *range, const lt_stored_origin *origin);
size_t lt_stored_range_bytes(const lt_weight_range *range);
/* The model takes over the open source, which is left empty; on a device nothing more is read from
 * it. */
/* Write a range in the form in which it is multiplied to dst on the host, followed by its
 * scales. */
LT_MUST_USE lt_err lt_stored_range_write(lt_model *m,
                                         const lt_stored_origin (*origins)[LT_STORED_RANGES],
                                         int param, int range, unsigned char *dst);
/* Open a model without memory, whose ranges point into its file. spec: the spec with which it is
 * opened; the log then has a line about weights that stay in other types. NULL: the file's spec,
 * and no line. Close it also after a failure. */
typedef struct {
    lt_source source;
    lt_model *m;
    lt_stored_origin (*origins)[LT_STORED_RANGES];
} lt_stored_found;
LT_MUST_USE lt_err lt_stored_weights_find(lt_stored_found *f, const char *path,
                                          const lt_model_spec *spec, const lt_model_options *o,
                                          bool on_device);
void lt_stored_weights_found_close(lt_stored_found *f);

/* ---- Slices (stored_slices.c) ----
 * The blocks of a unit lie range after range, and n ranks divide their bytes into equal slices,
 * wherever these cut. A layer computes after all slices of its unit have been gathered
 * (parallel/zero.h). All matrices of NF4_DOUBLE are kept in NF4, as parts are. */

#define LT_STORED_ALIGN 64 /* Bytes: where ranges and slices begin. */

typedef struct lt_stored_slices {
    int n, own;
    size_t *bytes;        /* (n_units): of one slice. */
    unsigned char **base; /* (n_units): this rank's; NULL: the unit has no blocks. */
} lt_stored_slices;

/* Sets the offset `at` of each range within its unit, and bytes (n_units): the size of each unit's
 * blocks, padded for n equal slices. */
void lt_stored_unit_bytes(size_t *bytes, const lt_param_table *t, lt_stored_weight *stored, int n);
/* The same of a file, of the part that o->partition says; free *stored. */
LT_MUST_USE lt_err lt_stored_slices_plan(lt_stored_weight **stored, size_t *bytes, const char *path,
                                         const lt_model_options *o, bool on_device, int n);
/* A model whose blocks are this rank's slices; its other weights are elsewhere. */
LT_MUST_USE lt_err lt_stored_slices_open(lt_model **out, const char *path,
                                         const lt_model_spec *spec, const lt_model_options *o,
                                         int n, int own);
/* From now on the blocks of the unit lie here; NULL: nowhere. unit -1: those of all units. */
void lt_stored_slices_use(lt_model *m, int unit, unsigned char *blocks);
void lt_stored_slices_close(lt_stored_slices *s); /* Accepts NULL. */

LT_MUST_USE lt_err lt_stored_weights_keep(lt_model *m, lt_source *source);
void lt_stored_weights_close(lt_model *m);

/* weights.c: call `each` with every tensor of a parameter, after checks. FORMAT: they do not cover
 * it exactly. */
typedef lt_err lt_weight_part_fn(void *ctx, const char *name, const lt_weight *w,
                                 const lt_name_place *p);
LT_MUST_USE lt_err lt_weight_each_part(const lt_source *s, const lt_model_spec *spec,
                                       const lt_param *param, lt_weight_part_fn *fn, void *ctx);
/* > 0: rows come in pairs within heads of this many rows. */
int64_t lt_weight_pair_rows(const lt_source *s, const lt_model_spec *spec, const lt_name_place *p);
/* The row of ours to which row r of the file goes: pairs (2i, 2i + 1) of a head become rows i and i
 * + half. head 0: r. */
int64_t lt_weight_target_row(int64_t head, int64_t r);
/* The inverse: the row in the file of Lateen's row r. */
int64_t lt_weight_source_row(int64_t head, int64_t r);

#endif
