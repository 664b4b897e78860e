/* goodput.h: where the time of a run goes. Every second since this process began is counted as
 * exactly one kind: a mark counts the time since the previous mark. Goodput is productive time /
 * all time. */
#ifndef LT_TRAIN_GOODPUT_H
#define LT_TRAIN_GOODPUT_H

#include <stdbool.h>

#define LT_GOODPUT_MAP(X)                                                                          \
    X(productive, "steps that brought the run further")                                            \
    X(checkpoint, "writing checkpoints and the model, as far as training waited for it")           \
    X(restart, "from the last sign of the attempt before, else from the program's begin, to the "  \
               "first step")                                                                       \
    X(rework, "steps that an earlier attempt had done already, and steps without an update")       \
    X(stall, "waiting for rows of data")                                                           \
    X(evaluation, "validation, samples, reports")

typedef enum {
#define LT_GOODPUT_ENUM(name, help) LT_GOODPUT_##name,
    LT_GOODPUT_MAP(LT_GOODPUT_ENUM)
#undef LT_GOODPUT_ENUM
        LT_GOODPUT_COUNT
} lt_goodput_kind;
extern const char *const lt_goodput_names[LT_GOODPUT_COUNT];

typedef struct {
    double s[LT_GOODPUT_COUNT];
    double mark_s; /* Time of the last mark, by lt_clock_s. */
} lt_goodput;

/* start_s: when the process began; gap_s: the time before start_s that counts as restart. */
void lt_goodput_begin(lt_goodput *t, double start_s, double gap_s);
void lt_goodput_spend(lt_goodput *t, lt_goodput_kind kind);
/* A step: wait_s of the time since the last mark is stall, the rest is productive or rework. */
void lt_goodput_step(lt_goodput *t, double wait_s, bool productive);

#endif
