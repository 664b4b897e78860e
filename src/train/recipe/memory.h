/* memory.h: the memory of a training run, by purpose, before it is allocated. */
#ifndef LT_TRAIN_MEMORY_H
#define LT_TRAIN_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "model/pass/pass.h"
#include "parallel/zero.h"
#include "train/recipe/recipe.h"

#define LT_MEMORY_ROWS_MAX 24

typedef struct {
    const char *name;
    size_t bytes;
    bool passing; /* Temporary: no two exist at once, so only the largest counts. */
} lt_memory_row;

typedef struct {
    lt_memory_row rows[LT_MEMORY_ROWS_MAX];
    int n_rows;
    size_t announced_bytes; /* Sum of the permanent rows and the largest temporary one. */
    /* The part that the recipe alone determines (lt_memory_buffers), and the part on the device. */
    size_t buffers_bytes, device_bytes;
} lt_memory_plan;

/* The rows that follow from the recipe: every buffer as measured by its carve function, without
 * device or data, so that `lateen plan` and `lateen train` announce the same bytes. announced_bytes
 * is their sum. m: memory of the passes; NULL: that of one pass, measured here. shards: what ZeRO
 * divides; NULL, or of level 0: nothing. */
LT_MUST_USE lt_err lt_memory_buffers(lt_memory_plan *out, const lt_recipe *r,
                                     const lt_model_spec *spec, lt_dtype dtype,
                                     const lt_pass_options *o, const lt_pass_memory *m,
                                     const lt_shards *shards);

struct lt_training;

/* Fill in the plan of an opened run: these rows, which must equal what was allocated, and those
 * that only the process knows: the program, the tokenizer and the data. */
LT_MUST_USE lt_err lt_memory_plan_make(lt_memory_plan *out, const struct lt_training *t);

void lt_memory_plan_log(const lt_memory_plan *p);
json_t *lt_memory_plan_json(const lt_memory_plan *p); /* {name: bytes}; NULL: out of memory. */

/* Resident bytes of this process: current, and peak. */
size_t lt_memory_resident(void);
size_t lt_memory_grown(size_t before); /* Growth since `before`; 0: it shrank. */
size_t lt_memory_peak(void);

#endif
