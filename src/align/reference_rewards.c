/* reference_rewards.c: see reference_rewards.h. */
#include "align/reference_rewards.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "lateen/align.h"

#define DRAWS_STREAM 0x717202 /* Stream of the seed that gives the seeds of prompts. */
#define STATE_BYTES  ((size_t)1 << 16)

typedef struct {
    const lt_reference_rewards_options *o;
    lt_reference_rewards_stats *stats;
    char part[LT_PATH_BYTES], state[LT_PATH_BYTES], key[17];
    FILE *file; /* OUT.part */
    int64_t done;
    lt_tokenizer_scratch *scratch;
    lt_question *questions; /* (prompts): those that are drawn together. */
    /* (n_all): completions to be judged, with their problems, tokens, texts and rewards: first n
     * for each prompt, then the completions in the lines themselves. */
    const lt_problem **problems;
    lt_answer *answers;
    char **texts;
    double *rewards;
    int64_t n_all;
} work;

/* ---- What is there ---- */

static lt_err name_files(work *w) {
    const char *out = w->o->out;
    const uint64_t parts[] = {w->o->problems->hash, w->o->identity, (uint64_t)w->o->n,
                              (uint64_t)w->o->prompts, w->o->seed};
    if (strlen(out) + sizeof ".state.json" > LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "the path %s is too long", out);
    }
    (void)snprintf(w->part, sizeof w->part, "%s.part", out);
    (void)snprintf(w->state, sizeof w->state, "%s.state.json", out);
    (void)snprintf(w->key, sizeof w->key, "%016" PRIx64,
                   (uint64_t)XXH3_64bits(parts, sizeof parts));
    if (lt_file_exists(out)) {
        LT_FAIL(LT_ERR_STATE, "%s exists already; choose another file, or remove it", out);
    }
    return lt_file_make_parent(out);
}

/* Progress of an earlier start; 0 bytes: there was none. */
static lt_err read_state(work *w, int64_t *bytes) {
    json_t *state = NULL;
    const char *key = "";
    lt_err err = LT_OK;
    *bytes = 0;
    if (!lt_file_exists(w->state)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_json_load(&state, w->state, STATE_BYTES));
    LT_TRY_DONE(lt_json_str(state, "key", &key, false, w->state));
    LT_TRY_DONE(lt_json_i64(state, "bytes", bytes, false, w->state));
    LT_TRY_DONE(lt_json_i64(state, "prompts", &w->done, false, w->state));
    LT_TRY_DONE(lt_json_i64(state, "lines", &w->stats->lines, false, w->state));
    if (strcmp(key, w->key) != 0 || *bytes < 0 || w->done < 0 || w->done > w->o->problems->n) {
        LT_FAIL_DONE(LT_ERR_STATE,
                     "%s was made from other prompts, by another model or with other options; "
                     "choose another file, "
                     "or remove it and %s",
                     w->state, w->part);
    }
    w->stats->kept = w->done;
done:
    json_decref(state);
    return err;
}

static lt_err open_part(work *w) {
    struct stat is;
    int64_t bytes;
    LT_TRY(read_state(w, &bytes));
    LT_TRY(lt_file_may_replace(w->o->out));
    if (bytes > 0 && stat(w->part, &is) == 0 && is.st_size < bytes) { /* ftruncate would grow it. */
        LT_FAIL(LT_ERR_STATE,
                "%s has %" PRId64 " bytes, but %s says that %" PRId64 " are complete; remove both",
                w->part, (int64_t)is.st_size, w->state, bytes);
    }
    w->file = fopen(w->part, bytes > 0 ? "r+e" : "we");
    if (w->file == NULL || ftruncate(fileno(w->file), bytes) != 0 ||
        fseeko(w->file, 0, SEEK_END) != 0 || ftello(w->file) != bytes) {
        LT_FAIL(LT_ERR_IO, "%s, of which %" PRId64 " bytes are complete: %s", w->part, bytes,
                strerror(errno));
    }
    return LT_OK;
}

/* What was written so far is complete. */
static lt_err keep_state(work *w) {
    char text[256];
    if (fflush(w->file) != 0 || fdatasync(fileno(w->file)) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", w->part, strerror(errno));
    }
    (void)snprintf(text, sizeof text,
                   "{\"key\": \"%s\", \"bytes\": %" PRId64 ", \"prompts\": %" PRId64
                   ", \"lines\": %" PRId64 "}\n",
                   w->key, (int64_t)ftello(w->file), w->done, w->stats->lines);
    return lt_file_write_atomic(w->state, text, strlen(text));
}

/* ---- Completions ---- */

/* A line's own completion: "completion", or the assistant's turn at the end of "messages". NULL:
 * none. FORMAT: it is not a text. */
static lt_err own_completion(const lt_problem *p, const char **out) {
    const json_t *given = json_object_get(p->line, "completion"),
                 *messages = json_object_get(p->line, "messages");
    const bool has = given != NULL && !json_is_null(given);
    const json_t *list = has ? given : messages,
                 *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const bool answers = role != NULL && strcmp(role, "assistant") == 0;
    *out = json_is_string(given) ? json_string_value(given)
           : answers             ? json_string_value(json_object_get(last, "content"))
                                 : NULL;
    if (*out == NULL && (has || answers)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s:%" PRIu64 ": %s is neither a string nor a list whose last message is the "
                "assistant's and has a string as 'content'",
                p->path, p->line_number, has ? "'completion'" : "the answer in 'messages'");
    }
    return LT_OK;
}

/* All lines' own completions are texts. */
static lt_err check_completions(const lt_problems *all) {
    for (int64_t i = 0; i < all->n; i++) {
        const char *text;
        LT_TRY(own_completion(&all->items[i], &text));
    }
    return LT_OK;
}

/* A line's own completion as an answer that the model ended. */
static lt_err add_own(work *w, const lt_problem *p, const char *text) {
    const int64_t at = w->n_all++;
    lt_answer *answer = &w->answers[at];
    lt_ids ids = {0};
    lt_err err = LT_OK;
    w->problems[at] = p;
    w->texts[at] = strdup(text);
    *answer = (lt_answer){.ended = true};
    LT_TRY_DONE(lt_tokenizer_encode(w->o->tokenizer, w->scratch, text, strlen(text), 0, &ids));
    answer->n = (int64_t)ids.n + 1; /* Including the token that ends it. */
    answer->ids = calloc((size_t)answer->n, sizeof *answer->ids);
    if (w->texts[at] == NULL || answer->ids == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a completion of %zu tokens", ids.n);
    }
    for (size_t i = 0; i < ids.n; i++) {
        answer->ids[i] = (int32_t)ids.data[i];
    }
done:
    lt_ids_free(&ids);
    return err;
}

static lt_err draw(work *w, int64_t first, int64_t prompts) {
    const lt_reference_rewards_options *o = w->o;
    const lt_rollout_args asked = {.questions = w->questions, .n = prompts, .group = o->n};
    lt_rollout_stats stats = {0};
    for (int64_t i = 0; i < prompts; i++) {
        const lt_problem *p = &o->problems->items[first + i];
        lt_rng seeds = {.seed = o->seed, .stream = DRAWS_STREAM, .position = (uint64_t)(first + i)};
        w->questions[i] = (lt_question){p->prompt, p->n_prompt, lt_rng_u64(&seeds)};
    }
    LT_TRY(lt_rollouts_draw(o->rollouts, &asked, w->answers, &stats));
    for (int64_t i = 0; i < prompts * o->n; i++) {
        const lt_answer *a = &w->answers[i];
        w->n_all++;
        w->problems[i] = &o->problems->items[first + i / o->n];
        w->texts[i] = NULL;
        LT_TRY(lt_answer_text(&w->texts[i], a, o->tokenizer));
    }
    return LT_OK;
}

/* ---- Lines ---- */

/* A line: completion `one` among the rewards (n) of the prompt's. */
static lt_err write_line(work *w, int64_t one, const double *refs) {
    static const char *const dropped[] = {"messages", "question", "label", "conversations"};
    const double reward = w->rewards[one];
    json_t *line = json_copy(w->problems[one]->line), *rewards = json_array();
    double quantile;
    char *text = NULL;
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_align_quantile(reward, refs, w->o->n, &quantile));
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) {
        (void)json_object_del(line, dropped[i]);
    }
    for (int64_t i = 0; i < w->o->n; i++) {
        (void)json_array_append_new(rewards, json_real(refs[i]));
    }
    (void)json_object_set_new(line, "prompt", lt_problem_messages(w->problems[one]->line));
    (void)json_object_set_new(
        line, "completion",
        json_pack("[{s:s, s:s}]", "role", "assistant", "content", w->texts[one]));
    (void)json_object_set_new(line, "reward", json_real(reward));
    (void)json_object_set(line, "ref_rewards", rewards);
    (void)json_object_set_new(line, "quantile", json_real(quantile));
    text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (text == NULL || json_array_size(rewards) != (size_t)w->o->n) {
        LT_FAIL_DONE(LT_ERR_OOM, "a line of %s", w->o->out);
    }
    if (fprintf(w->file, "%s\n", text) < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", w->part, strerror(errno));
    }
    w->stats->lines++;
done:
    json_decref(line);
    json_decref(rewards);
    free(text);
    return err;
}

/* Write the lines of prompt i of those drawn together. *own: index of the next completion from a
 * line itself. */
static lt_err write_prompt(work *w, int64_t i, int64_t *own) {
    const int64_t n = w->o->n;
    const double *refs = w->rewards + i * n;
    if (*own < w->n_all && w->problems[*own] == w->problems[i * n]) {
        return write_line(w, (*own)++, refs);
    }
    for (int64_t c = 0; c < n; c++) {
        LT_TRY(write_line(w, i * n + c, refs));
    }
    return LT_OK;
}

static void forget(work *w) {
    for (int64_t i = 0; i < w->n_all; i++) {
        free(w->texts[i]);
        if (w->answers[i].logp == NULL) { /* It is not from the engine. */
            free(w->answers[i].ids);
        }
    }
    w->n_all = 0;
}

static lt_err run_some(work *w, int64_t first, int64_t prompts) {
    const lt_reference_rewards_options *o = w->o;
    int64_t own = prompts * o->n;
    LT_TRY(draw(w, first, prompts));
    for (int64_t i = 0; i < prompts; i++) {
        const lt_problem *p = &o->problems->items[first + i];
        const char *text;
        LT_TRY(own_completion(p, &text));
        LT_TRY(text != NULL ? add_own(w, p, text) : LT_OK);
    }
    LT_TRY(lt_rewards_judge(o->rewards, w->problems, w->answers, (const char *const *)w->texts,
                            w->n_all, w->rewards, NULL));
    for (int64_t i = 0; i < prompts; i++) {
        LT_TRY(write_prompt(w, i, &own));
    }
    for (int64_t i = 0; i < prompts * o->n; i++) {
        w->stats->reward_sum += w->rewards[i];
    }
    w->stats->drawn += prompts * o->n;
    forget(w);
    w->done = first + prompts;
    return keep_state(w);
}

static lt_err run_all(work *w) {
    const lt_reference_rewards_options *o = w->o;
    const int64_t all = o->problems->n;
    while (w->done < all) {
        LT_TRY(run_some(w, w->done, all - w->done < o->prompts ? all - w->done : o->prompts));
        if (o->progress != NULL) {
            o->progress(o->ctx, w->done, all);
        }
    }
    w->stats->prompts = all;
    if (rename(w->part, o->out) != 0) {
        LT_FAIL(LT_ERR_IO, "%s to %s: %s", w->part, o->out, strerror(errno));
    }
    LT_TRY(lt_file_sync_parent(o->out));
    (void)remove(w->state);
    return LT_OK;
}

lt_err lt_reference_rewards_run(const lt_reference_rewards_options *o,
                                lt_reference_rewards_stats *stats) {
    const size_t most = (size_t)(o->prompts * (o->n + 1));
    work w = {.o = o, .stats = stats};
    lt_err err = LT_OK;
    *stats = (lt_reference_rewards_stats){.prompts = 0};
    w.questions = calloc((size_t)o->prompts, sizeof *w.questions);
    w.problems = calloc(most, sizeof *w.problems);
    w.answers = calloc(most, sizeof *w.answers);
    w.texts = calloc(most, sizeof *w.texts);
    w.rewards = calloc(most, sizeof *w.rewards);
    if (w.questions == NULL || w.problems == NULL || w.answers == NULL || w.texts == NULL ||
        w.rewards == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu completions", most);
    }
    LT_TRY_DONE(check_completions(o->problems));
    LT_TRY_DONE(name_files(&w));
    LT_TRY_DONE(lt_tokenizer_scratch_open(&w.scratch, o->tokenizer));
    LT_TRY_DONE(open_part(&w));
    LT_TRY_DONE(run_all(&w));
done:
    forget(&w);
    if (w.file != NULL) {
        (void)fclose(w.file);
    }
    lt_tokenizer_scratch_close(w.scratch);
    free(w.questions);
    free(w.problems);
    free(w.answers);
    free(w.texts);
    free(w.rewards);
    return err;
}
