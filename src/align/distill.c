/* distill.c: see distill.h. */
#include "align/distill.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/text_reader.h"
#include "lateen/generate.h"
#include "model/pass/acts.h"
#include "model/alloc.h"
#include "model/blocks/context.h"
#include "train/chat_data.h"

/* Random streams of the run's seed: which examples are on policy, and the seeds of their
 * answers. */
#define CHOICE_STREAM 0x646b01
#define ANSWER_STREAM 0x646b02

#define MOST_RUNNING 256

/* ---- Opening: conversations ---- */

static lt_err read_set(lt_training *t, lt_distill_set *set, lt_mixture *m, const char *paths,
                       const char *option) {
    LT_TRY(lt_mixture_parse(m, paths, option));
    for (int64_t i = 0; i < m->n_sources; i++) {
        const lt_loader_source *s = &m->sources[i];
        if (!lt_text_path_is_jsonl(s->path)) {
            LT_FAIL(LT_ERR_ARG,
                    "%s: %s: objective.kind = distill learns from conversations, JSON lines in a "
                    "file named .jsonl, .ndjson or .json",
                    option, s->path);
        }
        if (s->weight != 1.0) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: %s:%g: weights with objective.kind = distill: not supported", option,
                    s->path, s->weight);
        }
    }
    LT_TRY(lt_chat_data_read(m, option, &t->recipe, &t->chat));
    for (int64_t i = 0; i < m->n_sources; i++) {
        LT_TRY(lt_dialogues_add(&set->dialogues, m->sources[i].path));
    }
    return LT_OK;
}

/* ---- Opening: the teacher ---- */

lt_err lt_distill_check_teacher(const lt_model *student, const lt_tokenizer *own,
                                const lt_model *teacher, const lt_tokenizer *its,
                                const char *name) {
    const int64_t n_ids = student->spec.vocab_size;
    LT_TRY(lt_model_spec_writes(&teacher->spec, "distill.teacher"));
    if (teacher->spec.vocab_size != n_ids) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "the teacher %s has a vocabulary of %" PRId64 " tokens, the student one of %" PRId64
                ": distillation compares them token by token",
                name, teacher->spec.vocab_size, n_ids);
    }
    for (uint32_t id = 0; own != NULL && its != NULL && id < (uint32_t)n_ids; id++) {
        size_t n = 0, n_its = 0;
        const char *piece = lt_tokenizer_piece(own, id, &n);
        const char *other = lt_tokenizer_piece(its, id, &n_its);
        const bool both = piece != NULL && other != NULL;
        if ((both && (n != n_its || memcmp(piece, other, n) != 0)) ||
            (!both && (piece != NULL || other != NULL))) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "the teacher %s has another tokenizer than the student: id %u is \"%.*s\", and "
                    "the student's \"%.*s\"",
                    name, id, (int)n_its, other != NULL ? other : "", (int)n,
                    piece != NULL ? piece : "");
        }
    }
    return LT_OK;
}

static lt_err compare_vocabularies(const lt_distill *d) {
    const lt_training *t = d->t;
    lt_tokenizer *its = NULL;
    lt_err err = lt_tokenizer_open(&its, t->recipe.distill_teacher, NULL);
    if (err != LT_OK) {
        lt_log_warn(
            "distill.teacher has no tokenizer that could be compared with the student's: %s",
            lt_error_message());
    }
    err = lt_distill_check_teacher(t->model, t->tokenizer, d->teacher, its,
                                   t->recipe.distill_teacher);
    lt_tokenizer_close(its);
    return err;
}

static lt_err open_teacher(lt_distill *d) {
    lt_training *t = d->t;
    const lt_model_options how = {.dtype = t->model->options.dtype, .device = t->device};
    const lt_err err = lt_model_open(&d->teacher, t->recipe.distill_teacher, &how);
    if (err != LT_OK) {
        return lt_error_prefix(err, "distill.teacher");
    }
    LT_TRY(compare_vocabularies(d));
    if (t->recipe.seq > lt_model_spec_context(&d->teacher->spec)) {
        LT_FAIL(LT_ERR_ARG,
                "data.seq = %" PRId64 " is longer than the %" PRId64
                " positions of distill.teacher",
                t->recipe.seq, lt_model_spec_context(&d->teacher->spec));
    }
    return lt_objective_open_beside(t, &d->target.teacher, d->teacher, false);
}

static lt_err open_logprobs(lt_distill *d, lt_distill_set *set, const char *folder,
                            const char *option) {
    const lt_training *t = d->t;
    const int64_t n_ids = t->model->spec.vocab_size;
    lt_err err = lt_teacher_logprobs_open(&set->files, folder);
    if (err != LT_OK) {
        return lt_error_prefix(err, "%s", option);
    }
    if (set->files.vocab_size != n_ids) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: %s is of a teacher with a vocabulary of %" PRId64
                " tokens, the student has one of %" PRId64,
                option, folder, set->files.vocab_size, n_ids);
    }
    if (set->files.temperature != t->recipe.distill_temperature) {
        LT_FAIL(LT_ERR_ARG,
                "%s: %s has log-probabilities at temperature %g, distill.temperature is %g: those "
                "of another temperature cannot be computed from some of the tokens",
                option, folder, set->files.temperature, t->recipe.distill_temperature);
    }
    err = lt_teacher_logprobs_match(&set->files, &set->dialogues, t->recipe.seq, n_ids);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "%s", option);
}

/* Memory for the teacher's tokens of a pass. */
static lt_err open_targets(lt_distill *d) {
    const lt_training *t = d->t;
    const int64_t rows = t->micro * t->recipe.seq, k = d->train.files.k;
    if (d->valid.files.n > 0 && d->valid.files.k != k) {
        LT_FAIL(LT_ERR_ARG,
                "distill.valid_logprobs has %" PRId64
                " tokens for each position, distill.logprobs %" PRId64,
                d->valid.files.k, k);
    }
    for (int placed = 0; placed < 2; placed++) {
        d->target.ids = lt_tensor_take(&d->targets, LT_I32, rows, k, 0);
        d->target.logp = lt_tensor_take(&d->targets, LT_F32, rows, k, 0);
        LT_TRY(placed == 0 ? lt_arena_place(&d->targets, t->device, "tokens of the teacher")
                           : LT_OK);
    }
    d->ids = calloc((size_t)(rows * k), sizeof *d->ids);
    d->logp = calloc((size_t)(rows * k), sizeof *d->logp);
    return d->ids == NULL || d->logp == NULL
               ? lt_error_set(LT_ERR_OOM, "%" PRId64 " tokens for each of %" PRId64 " places", k,
                              rows)
               : LT_OK;
}

static lt_err open_rollouts(lt_distill *d) {
    lt_training *t = d->t;
    const lt_recipe *r = &t->recipe;
    const int64_t rows = r->batch / lt_training_dp(t);
    const lt_model *whole;
    lt_rollout_options o = {.max_tokens = r->distill_tokens,
                            .max_seq = r->seq,
                            .questions = rows,
                            .running = rows < MOST_RUNNING ? rows : MOST_RUNNING,
                            .temperature = r->distill_sampling};
    lt_model_ends(t->model, t->tokenizer, &o.ends);
    d->questions = calloc((size_t)rows, sizeof *d->questions);
    d->ended = calloc((size_t)rows, sizeof *d->ended);
    d->answers = calloc((size_t)rows, sizeof *d->answers);
    if (d->questions == NULL || d->ended == NULL || d->answers == NULL) {
        LT_FAIL(LT_ERR_OOM, "%" PRId64 " answers", rows);
    }
    LT_TRY(lt_objective_open_sharers(t, &d->sharers));
    LT_TRY(lt_objective_open_whole(t, false, &whole));
    LT_TRY(lt_rollouts_open(&d->rollouts, whole, &o));
    if (t->device->backend->host_memory) {
        t->objective_bytes += lt_rollouts_cache_bytes(d->rollouts);
    }
    return LT_OK;
}

static lt_err check_recipe(const lt_recipe *r) {
    const bool live = r->distill_teacher[0] != '\0', from_files = r->distill_words[0] != '\0';
    if (live == from_files) {
        LT_FAIL(LT_ERR_ARG, "objective.kind = distill learns from one teacher: %s",
                live ? "distill.teacher and distill.logprobs are both given"
                     : "give distill.teacher, a model, or distill.logprobs");
    }
    if (from_files && r->distill_on_policy > 0.0) {
        LT_FAIL(LT_ERR_ARG,
                "distill.on_policy = %g with distill.logprobs: these are log-probabilities of the "
                "given answers alone; answers of the student need distill.teacher",
                r->distill_on_policy);
    }
    if (from_files && r->valid[0] != '\0' && r->distill_valid[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "data.valid = %s with distill.logprobs needs distill.valid_logprobs",
                r->valid);
    }
    if (r->ramp[0] != '\0') {
        LT_FAIL(LT_ERR_UNSUPPORTED, "batch.ramp = %s with objective.kind = distill: not supported",
                r->ramp);
    }
    if (r->distill_on_policy > 0.0 && r->distill_tokens >= r->seq) {
        LT_FAIL(LT_ERR_ARG,
                "distill.tokens = %" PRId64 " leaves no room for a question in data.seq = %" PRId64,
                r->distill_tokens, r->seq);
    }
    return LT_OK;
}

/* ---- Rows ---- */

/* Example i of the run: its number in the order in which conversations are drawn. */
static int64_t dialogue_of(const lt_distill *d, int64_t i) {
    const lt_recipe *r = &d->t->recipe;
    const uint64_t n = (uint64_t)d->train.dialogues.n, at = (uint64_t)i;
    return (int64_t)(r->shuffle != LT_SHUFFLE_NONE
                         ? lt_rng_permute(at % n, n, (uint64_t)r->seed, at / n)
                         : at % n);
}

static bool is_on_policy(const lt_distill *d, int64_t i) {
    const lt_recipe *r = &d->t->recipe;
    lt_rng rng = {.seed = (uint64_t)r->seed, .stream = CHOICE_STREAM, .position = (uint64_t)i};
    return lt_rng_uniform(&rng) < r->distill_on_policy;
}

static lt_err read_dialogue(lt_distill *d, const lt_distill_set *set, int64_t i, int64_t *n) {
    return lt_dialogues_read(&set->dialogues, i, d->t->recipe.seq, d->t->model->spec.vocab_size,
                             d->row_ids, d->learnt, n);
}

/* Keep the question of the dialogue that was read last. Row `row` of the step holds its tokens. */
static void keep_question(lt_distill *d, int64_t example, int64_t n, const lt_batch *to,
                          int64_t row) {
    const lt_recipe *r = &d->t->recipe;
    const int64_t first = lt_dialogues_last_answer(d->learnt, n);
    lt_rng seeds = {
        .seed = (uint64_t)r->seed, .stream = ANSWER_STREAM, .position = (uint64_t)example};
    if (first > 0 && first + r->distill_tokens <= r->seq) {
        d->questions[row] = (lt_question){to->tokens + row * to->seq, first, lt_rng_u64(&seeds)};
    }
}

/* Row `row` becomes the question and the student's answer. */
static void put_answer(lt_distill *d, const lt_answer *a, const lt_batch *to, int64_t row) {
    const int64_t first = d->questions[row].n_prompt, n = first + a->n;
    memcpy(d->row_ids, d->questions[row].prompt, (size_t)first * sizeof *d->row_ids);
    memcpy(d->row_ids + first, a->ids, (size_t)a->n * sizeof *a->ids);
    for (int64_t t = 0; t < n; t++) {
        d->learnt[t] = t >= first;
    }
    lt_dialogues_row(d->row_ids, d->learnt, n, to, row);
    d->ended[row] = a->ended;
}

/* Answers to questions [first, end) of those that were asked. */
static lt_err draw_part(lt_distill *d, const lt_question *asked, int64_t first, int64_t end) {
    const lt_rollout_args some = {.questions = asked + first, .n = end - first, .group = 1};
    lt_rollout_stats stats = {0};
    const lt_err err = end > first
                           ? lt_rollouts_draw(d->rollouts, &some, d->answers + first, &stats)
                           : LT_OK;
    d->draw_s = stats.refresh_s + stats.draw_s;
    return err;
}

/* Draw answers to the kept questions of n rows. Ranks with the same rows divide the questions among
 * themselves. */
static lt_err draw_answers(lt_distill *d, int64_t n, lt_row_batch *out) {
    lt_shared_answers shared = {.answers = d->answers};
    lt_question *asked = malloc((size_t)n * sizeof *asked);
    int64_t n_asked = 0;
    lt_err err = LT_OK;
    if (asked == NULL) {
        LT_FAIL(LT_ERR_OOM, "%" PRId64 " questions", n);
    }
    for (int64_t i = 0; i < n; i++) {
        if (d->questions[i].n_prompt > 0) {
            asked[n_asked++] = d->questions[i];
        }
    }
    LT_TRY_DONE(lt_objective_bring_whole(d->t)); /* All ranks do, also those without a question. */
    shared.n = n_asked;
    lt_share_part(d->sharers, n_asked, &shared.first, &shared.end);
    LT_TRY_DONE(
        lt_share_answers(d->sharers, &shared, draw_part(d, asked, shared.first, shared.end)));
    for (int64_t i = 0, k = 0; i < n; i++) {
        if (d->questions[i].n_prompt > 0) {
            put_answer(d, &d->answers[k++], &out->ids, i);
            out->index[i] = d->train.dialogues.n + i;
        }
    }
done:
    free(asked);
    free(shared.ids);
    free(shared.logp);
    return err;
}

static lt_err next(void *of, int64_t n, lt_row_batch *out) {
    lt_distill *d = of;
    const int64_t dp = lt_training_dp(d->t), rank = lt_training_dp_rank(d->t);
    for (int64_t i = 0; i < n; i++, d->at++) {
        const int64_t example = d->at * dp + rank;
        int64_t tokens;
        out->index[i] = dialogue_of(d, example);
        LT_TRY(read_dialogue(d, &d->train, out->index[i], &tokens));
        lt_dialogues_row(d->row_ids, d->learnt, tokens, &out->ids, i);
        if (d->rollouts != NULL) {
            d->questions[i].n_prompt = 0;
            if (is_on_policy(d, example)) {
                keep_question(d, example, tokens, &out->ids, i);
            }
        }
    }
    return d->rollouts != NULL ? draw_answers(d, n, out) : LT_OK;
}

/* Examples of all ranks, so that a run may go on with another number of them. */
static void place(const void *of, lt_row_place *out) {
    const lt_distill *d = of;
    out->row = d->at * lt_training_dp(d->t);
}

static json_t *print(const void *of, const lt_row_place *p) {
    (void)of;
    return json_pack("{s:I}", "examples", (json_int_t)p->row);
}

static lt_err seek(void *of, const json_t *from) {
    lt_distill *d = of;
    const int64_t dp = lt_training_dp(d->t);
    int64_t examples = 0;
    LT_TRY(lt_json_i64(from, "examples", &examples, false, "place in the conversations"));
    if (examples < 0 || examples % dp != 0) {
        LT_FAIL(LT_ERR_STATE,
                "%" PRId64 " examples were drawn, which %" PRId64 " ranks cannot have divided",
                examples, dp);
    }
    d->at = examples / dp;
    return LT_OK;
}

static lt_err next_held_out(void *of, int64_t n, lt_row_batch *out) {
    lt_distill *d = of;
    const int64_t dp = lt_training_dp(d->t), rank = lt_training_dp_rank(d->t);
    for (int64_t i = 0; i < n; i++, d->at_held_out++) {
        const int64_t k = (d->at_held_out * dp + rank) % d->valid.dialogues.n;
        int64_t tokens;
        LT_TRY(read_dialogue(d, &d->valid, k, &tokens));
        lt_dialogues_row(d->row_ids, d->learnt, tokens, &out->ids, i);
        out->index[i] = -1 - k;
    }
    return LT_OK;
}

static lt_err seek_held_out(void *of, const json_t *from) {
    LT_ASSERT(from == NULL);
    ((lt_distill *)of)->at_held_out = 0;
    return LT_OK;
}

/* ---- The objective ---- */

static lt_err distill_open(void *of, lt_training *t) {
    lt_distill *d = of;
    const lt_recipe *r = &t->recipe;
    d->t = t;
    LT_TRY(check_recipe(r));
    d->row_ids = malloc((size_t)r->seq * sizeof *d->row_ids);
    d->learnt = malloc((size_t)r->seq * sizeof *d->learnt);
    if (d->row_ids == NULL || d->learnt == NULL) {
        LT_FAIL(LT_ERR_OOM, "a row of %" PRId64 " tokens", r->seq);
    }
    d->target.temperature = (float)r->distill_temperature;
    d->target.beta = (float)r->distill_beta;
    d->target.label_share = (float)r->distill_labels;
    d->target.rest = r->distill_rest == 0;
    LT_TRY(read_set(t, &d->train, &t->train_mixture, r->train, "data.train"));
    t->source = (lt_row_source){
        .of = d, .next = next, .place = place, .print = print, .seek = seek};
    if (r->valid[0] != '\0') {
        LT_TRY(read_set(t, &d->valid, &t->valid_mixture, r->valid, "data.valid"));
        t->held_out = (lt_row_source){.of = d, .next = next_held_out, .seek = seek_held_out};
        t->n_held_out = d->valid.dialogues.n;
    }
    if (r->distill_teacher[0] != '\0') {
        LT_TRY(open_teacher(d));
    } else {
        LT_TRY(open_logprobs(d, &d->train, r->distill_words, "distill.logprobs"));
        LT_TRY(r->valid[0] != '\0'
                   ? open_logprobs(d, &d->valid, r->distill_valid, "distill.valid_logprobs")
                   : LT_OK);
        LT_TRY(open_targets(d));
    }
    return r->distill_on_policy > 0.0 ? open_rollouts(d) : LT_OK;
}

static void distill_close(void *of) {
    lt_distill *d = of;
    lt_pass_close(d->target.teacher);
    lt_model_close(d->teacher);
    lt_rollouts_close(d->rollouts);
    if (d->t != NULL) {
        lt_arena_release(&d->targets, d->t->device);
    }
    lt_dialogues_close(&d->train.dialogues);
    lt_dialogues_close(&d->valid.dialogues);
    lt_teacher_logprobs_close(&d->train.files);
    lt_teacher_logprobs_close(&d->valid.files);
    free(d->ids);
    free(d->logp);
    free(d->row_ids);
    free(d->learnt);
    free(d->questions);
    free(d->ended);
    free(d->answers);
    *d = (lt_distill){.t = NULL};
}

/* What identifies the data of `name` in a checkpoint. */
static lt_err note(lt_training *t, const json_t *then, const char *name, const char *option,
                   const char *now) {
    if (!lt_training_note(t, then, name, now)) {
        return LT_OK;
    }
    return lt_training_allow_or(
        t, option,
        lt_error_set(LT_ERR_STATE, "%s: the data have changed since the checkpoint", option));
}

static lt_err distill_data(void *of, lt_training *t, const json_t *then) {
    const lt_distill *d = of;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, d->train.dialogues.hash);
    LT_TRY(note(t, then, "train", "data.train", hash));
    LT_TRY(d->teacher != NULL
               ? lt_training_note_model(t, then, "distill.teacher", t->recipe.distill_teacher)
               : LT_OK);
    return d->train.files.n > 0 ? note(t, then, "logprobs", "distill.logprobs", d->train.files.key)
                                : LT_OK;
}

/* Upload the teacher's distributions for the tokens of a pass that this rank holds. */
static lt_err send_logprobs(lt_distill *d, const lt_pass_batch *b, const int64_t *index) {
    const lt_training *t = d->t;
    const lt_backend *backend = t->device->backend;
    lt_queue *queue = lt_pass_queue(t->pass);
    const int cp = lt_training_cp(t);
    const int64_t k = d->train.files.k, seq = b->seq * cp;
    const size_t bytes = (size_t)(b->batch * b->seq * k) * sizeof *d->ids;
    LT_TRY(backend->sync(queue)); /* What was sent before has arrived. */
    for (int64_t i = 0; i < b->batch; i++) {
        const bool held_out = index[i] < 0;
        lt_teacher_logprobs_row(held_out ? &d->valid.files : &d->train.files,
                                held_out ? -1 - index[i] : index[i], seq, d->ids + i * seq * k,
                                d->logp + i * seq * k);
    }
    if (cp > 1) {
        const int rank = lt_group_rank(t->world->mesh.cp);
        lt_context_take(d->ids, b->batch, seq * k, cp, rank);
        lt_context_take(d->logp, b->batch, seq * k, cp, rank);
    }
    LT_TRY(backend->upload(queue, d->target.ids.data, d->ids, bytes));
    return backend->upload(queue, d->target.logp.data, d->logp, bytes);
}

static lt_err distill_aim(void *of, lt_training *t, const lt_pass_batch *b, const int64_t *index) {
    lt_distill *d = of;
    LT_TRY(d->target.teacher != NULL ? lt_pass_read(d->target.teacher, b)
                                     : send_logprobs(d, b, index));
    lt_pass_aim(t->pass, &d->target);
    return LT_OK;
}

enum { SUM_ROWS, SUM_DRAWN, SUM_TOKENS, SUM_ENDED };
enum { MOST_DRAW };

/* The loss of a row: the sum over its tokens. The value of a token is minus its loss. */
static double row_loss(const lt_objective_part *part, int64_t row, double *labels) {
    double loss = 0.0;
    for (int64_t i = row * part->seq; i < (row + 1) * part->seq; i++) {
        if (part->labels[i] >= 0) {
            loss -= (double)part->values[i];
            *labels += 1.0;
            if (part->dvalues != NULL) {
                part->dvalues[i] = -1.0f;
            }
        }
    }
    return loss;
}

static lt_err distill_loss(void *of, const lt_objective_part *part, bool held_out,
                           lt_step_record *sum) {
    const lt_distill *d = of;
    double *s = sum->objective;
    for (int64_t i = 0; i < part->n; i++) {
        const int64_t drawn = part->index[i] - d->train.dialogues.n; /* At least 0: on policy. */
        double labels = 0.0;
        sum->loss_sum += row_loss(part, i, &labels);
        sum->weight_sum += labels;
        sum->labels += labels;
        s[SUM_ROWS] += 1.0;
        if (drawn >= 0) {
            s[SUM_DRAWN] += 1.0;
            s[SUM_TOKENS] += labels;
            s[SUM_ENDED] += d->ended[drawn];
        }
    }
    sum->most[MOST_DRAW] = held_out ? 0.0 : d->draw_s;
    return LT_OK;
}

static void distill_report(const void *of, const lt_step_record *sum, double *values,
                           bool *present) {
    const lt_distill *d = of;
    const double *s = sum->objective, drawn = s[SUM_DRAWN];
    present[LT_DISTILL_labels] = true;
    values[LT_DISTILL_labels] = sum->labels;
    present[LT_DISTILL_on_policy] = present[LT_DISTILL_rollout_s] = d->rollouts != NULL;
    values[LT_DISTILL_on_policy] = drawn / s[SUM_ROWS];
    values[LT_DISTILL_rollout_s] = sum->most[MOST_DRAW];
    present[LT_DISTILL_answer_tokens] = present[LT_DISTILL_ended] = drawn > 0.0;
    values[LT_DISTILL_answer_tokens] = drawn > 0.0 ? s[SUM_TOKENS] / drawn : 0.0;
    values[LT_DISTILL_ended] = drawn > 0.0 ? s[SUM_ENDED] / drawn : 0.0;
}

lt_objective lt_distill_objective(lt_distill *d, const lt_recipe *r) {
    return (lt_objective){.of = d,
                          .draws_late = r->distill_on_policy > 0.0,
                          .kind = "distill",
                          .metrics = lt_distill_metrics,
                          .n_metrics = LT_DISTILL_METRIC_COUNT,
                          .open = distill_open,
                          .data = distill_data,
                          .aim = distill_aim,
                          .loss = distill_loss,
                          .report = distill_report,
                          .close = distill_close};
}
