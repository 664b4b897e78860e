/* tokenizer/scored.h: vocabularies that are a list of pieces with scores and types: SentencePiece,
 * llama2.c, GGUF "llama" and "t5". */
#ifndef LT_DATA_TOKENIZER_SCORED_H
#define LT_DATA_TOKENIZER_SCORED_H

#include "data/tokenizer/impl.h"

/* SentencePiece's numbers of types, which GGUF uses, too. */
typedef enum {
    LT_SCORED_NORMAL = 1,
    LT_SCORED_UNKNOWN,
    LT_SCORED_CONTROL,
    LT_SCORED_USER,
    LT_SCORED_UNUSED,
    LT_SCORED_BYTE
} lt_scored_type;

typedef struct {
    lt_text text;
    uint32_t *start, *bytes; /* (n) */
    float *score;            /* (n) */
    uint8_t *type;           /* (n) lt_scored_type */
    uint32_t n, room;
} lt_scored;

LT_MUST_USE lt_err lt_scored_put(lt_scored *v, const char *s, size_t n, float score,
                                 lt_scored_type type);
void lt_scored_free(lt_scored *v);

/* Fill t's vocabulary and model (t->model says which; mode is BPE's). t->unk must be set. */
LT_MUST_USE lt_err lt_scored_finish(const lt_scored *v, lt_tokenizer *t, lt_bpe_mode mode,
                                    bool byte_fallback);

#endif
