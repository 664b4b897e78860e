/* teacher_logprobs.h: a teacher's distributions in files: for each learnt token of a conversation,
 * the k tokens of the vocabulary that were most likely there, with the logarithms of their
 * probabilities. `lateen align logprobs` writes them, and distillation reads them (distill.h).
 *
 *     FOLDER/logprobs.json                  written last: describes the parts
 *     FOLDER/part-00000.safetensors ...     the same number of conversations each, in order
 *
 * Tensors of a part of n conversations, of which m tokens are learnt:
 *
 *     tokens    I32 (t)       the conversations' tokens, concatenated
 *     starts    I32 (n + 1)   where each conversation begins in tokens
 *     places    I32 (m)       learnt tokens, numbered within their conversation
 *     first     I32 (n + 1)   where the places of each conversation begin
 *     ids       I32 (m, k)    the tokens most likely in these places, in ascending order of id
 *     logprobs  F32 (m, k)    natural logarithms of their probabilities
 *
 * The metadata of a part is {"key": K}, where K is a checksum of conversations, weights, k,
 * temperature and the length to which conversations are cut. A part is written under a temporary
 * name and then renamed, so an interrupted command resumes after the last complete part. The run
 * that reads the files compares the tokens with its own, and refuses files that were made with
 * another tokenizer or template. */
#ifndef LT_ALIGN_TEACHER_LOGPROBS_H
#define LT_ALIGN_TEACHER_LOGPROBS_H

#include "align/dialogues.h"
#include "base/file.h"
#include "model/pass/pass.h"
#include "model/files/safetensors.h"

#define LT_TEACHER_LOGPROBS_FILE   "logprobs.json"
#define LT_TEACHER_LOGPROBS_FORMAT "lateen-logprobs-1"
#define LT_TEACHER_LOGPROBS_MOST   512 /* k at most: what distill.cu takes. */

/* The path of part i. */
LT_MUST_USE lt_err lt_teacher_logprobs_part(char out[LT_PATH_BYTES], const char *folder, int64_t i);

/* ---- Reading ---- */

typedef struct {
    lt_safetensors file;
    int64_t n; /* Conversations. */
    const lt_safetensor *tokens, *starts, *places, *first, *ids, *logprobs;
} lt_teacher_part;

typedef struct {
    char folder[LT_PATH_BYTES];
    lt_teacher_part *parts;
    int64_t n_parts, per_part;
    int64_t n, k, vocab_size;
    double temperature;
    char key[17];
} lt_teacher_logprobs;

/* NOT_FOUND: logprobs.json is not there. Close it also after a failure. */
LT_MUST_USE lt_err lt_teacher_logprobs_open(lt_teacher_logprobs *out, const char *folder);
void lt_teacher_logprobs_close(lt_teacher_logprobs *w);

/* Check that the files are of these conversations, whose first `longest` tokens are used. FORMAT
 * names the first conversation that differs, and its token. id_end: size of the vocabulary. */
LT_MUST_USE lt_err lt_teacher_logprobs_match(const lt_teacher_logprobs *w, const lt_dialogues *d,
                                             int64_t longest, int64_t id_end);

/* The teacher's tokens for conversation i, for a row of seq positions: those of token t
 * go to position t - 1 of ids and logp (seq, k). Positions whose next token is not learnt are not
 * written. */
void lt_teacher_logprobs_row(const lt_teacher_logprobs *w, int64_t i, int64_t seq, int32_t *ids,
                             float *logp);

/* ---- Writing ---- */

typedef struct {
    const char *folder, *model; /* model: its name, for logprobs.json. */
    const lt_dialogues *dialogues;
    lt_pass *pass;
    const lt_model *teacher;
    int64_t k, per_part;
    int64_t rows, seq; /* Shape of the pass. */
    double temperature;
    void (*progress)(void *ctx, int64_t done, int64_t all); /* Conversations. May be NULL. */
    void *ctx;
} lt_teacher_logprobs_options;

typedef struct {
    int64_t conversations, places, kept; /* kept: conversations of an earlier start. */
} lt_teacher_logprobs_stats;

/* STATE: the folder has parts of something else. */
LT_MUST_USE lt_err lt_teacher_logprobs_write(const lt_teacher_logprobs_options *o,
                                             lt_teacher_logprobs_stats *stats);

#endif
