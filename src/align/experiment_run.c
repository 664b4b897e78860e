/* experiment_run.c: sends the cells of an experiment as requests to a server without a socket, and
 * keeps their results on disk: see experiment.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "align/experiment.h"
#include "align/local_requests.h"
#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "serve/api/json_out.h"

typedef struct {
    lt_experiment *e;
    const lt_experiment_host *host;
    int fd;                   /* Results. */
    int64_t model, next, end; /* Cells of the model: the next one to check, and their end. */
} run;

/* ---- Results on disk ---- */

static lt_err put_header(const lt_experiment *e, int fd) {
    char line[128];
    const int n = snprintf(line, sizeof line, "{\"experiment\":\"%016llx\",\"cells\":%lld}\n",
                           (unsigned long long)e->hash, (long long)e->n_cells);
    if (write(fd, line, (size_t)n) != n) {
        LT_FAIL(LT_ERR_IO, "%s: results: %s", e->out, strerror(errno));
    }
    return LT_OK;
}

static bool header_is(const lt_experiment *e, const char *text, size_t n) {
    char hash[32];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)e->hash);
    return memmem(text, n, hash, strlen(hash)) != NULL;
}

/* Read a line of results; false: it is not one. */
static bool take_result(lt_experiment *e, const char *text, size_t n) {
    json_t *line = lt_json_loadb(text, n, 0, NULL);
    const json_t *cell = json_object_get(line, "cell");
    const int64_t at = json_integer_value(cell);
    const bool good = json_is_integer(cell) && at >= 0 && at < e->n_cells && !e->cells[at].done;
    if (good) {
        lt_experiment_cell *c = &e->cells[at];
        c->done = true;
        c->right = json_is_true(json_object_get(line, "right"));
        c->tokens = (int32_t)json_integer_value(json_object_get(line, "tokens"));
        c->scored = json_is_number(json_object_get(line, "score"));
        c->score = json_number_value(json_object_get(line, "score"));
        c->kl = json_number_value(json_object_get(line, "kl"));
        e->n_done++;
    }
    json_decref(line);
    return good;
}

/* Read what an earlier run left: whole lines count, and the rest is cut off. */
static lt_err read_results(run *r, const char *path) {
    lt_experiment *e = r->e;
    lt_file_map map = {0};
    size_t at = 0;
    bool first = true;
    lt_err err = LT_OK;

    LT_TRY(lt_file_map_open(&map, path));
    while (at < map.size_bytes) {
        const char *text = (const char *)map.data + at;
        const char *end = memchr(text, '\n', map.size_bytes - at);
        const size_t n = end != NULL ? (size_t)(end - text) : 0;
        if (end != NULL && first && !header_is(e, text, n)) {
            LT_FAIL_DONE(LT_ERR_STATE,
                         "%s holds the results of another experiment: name another folder", path);
        }
        if (end == NULL || (!first && !take_result(e, text, n))) {
            break;
        }
        first = false;
        at += n + 1;
    }
    if (ftruncate(r->fd, (off_t)at) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (first) {
        LT_TRY_DONE(put_header(e, r->fd));
    }
done:
    lt_file_map_close(&map);
    return err;
}

static lt_err open_results(run *r, char path[LT_PATH_BYTES]) {
    LT_TRY(lt_file_make_dirs(r->e->out));
    LT_TRY(lt_path_join(path, r->e->out, "results.jsonl"));
    r->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (r->fd < 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (flock(r->fd, LOCK_EX | LOCK_NB) != 0) {
        LT_FAIL(LT_ERR_STATE, "%s: %s", path,
                errno == EWOULDBLOCK ? "another process writes to it" : strerror(errno));
    }
    return read_results(r, path);
}

typedef struct {
    int64_t cell;
    const char *text;
    size_t n;
} sorted_line;

static int by_cell(const void *a, const void *b) {
    const int64_t x = ((const sorted_line *)a)->cell, y = ((const sorted_line *)b)->cell;
    return (x > y) - (x < y);
}

/* So that the same results have the same bytes, in whatever order they arrived. */
static lt_err sort_results(const lt_experiment *e, const char *path) {
    lt_file_map map = {0};
    sorted_line *lines = calloc((size_t)e->n_cells + 1, sizeof *lines);
    lt_json_out o = {0};
    int64_t n_lines = 0;
    lt_err err = LT_OK;

    if (lines == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %lld lines", path, (long long)e->n_cells);
    }
    LT_TRY_DONE(lt_file_map_open(&map, path));
    for (size_t at = 0; at < map.size_bytes && n_lines <= e->n_cells;) {
        const char *text = (const char *)map.data + at;
        const size_t n = (size_t)((const char *)memchr(text, '\n', map.size_bytes - at) - text);
        const bool header = n_lines == 0 && at == 0;
        lines[n_lines++] = (sorted_line){
            header ? -1 : strtoll(text + strlen("{\"cell\":"), NULL, 10), text, n + 1};
        at += n + 1;
    }
    qsort(lines, (size_t)n_lines, sizeof *lines, by_cell);
    for (int64_t i = 0; i < n_lines; i++) {
        lt_out_raw(&o, lines[i].text, lines[i].n);
    }
    if (o.failed) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    LT_TRY_DONE(lt_file_write_atomic(path, o.data, o.n));
done:
    lt_file_map_close(&map);
    lt_out_free(&o);
    free(lines);
    return err;
}

/* ---- One cell ---- */

static void put_answer(const lt_experiment *e, int64_t cell, const char *text, size_t n,
                       lt_json_out *o) {
    const lt_experiment_place p = lt_experiment_place_of(e, cell);
    const lt_experiment_cell *c = &e->cells[cell];
    lt_out_open(o, '{');
    lt_out_key_int(o, "cell", cell);
    lt_out_key_str(o, "model", e->models[p.model].name);
    lt_out_key_str(o, "task", e->tasks[p.task].name);
    lt_out_key_str(o, "method", e->configs[p.config].method);
    lt_out_key_value(o, "parameters", e->configs[p.config].parameters);
    lt_out_key_int(o, "seed", e->seeds[p.seed]);
    lt_out_key_int(o, "problem", p.problem);
    lt_out_key_bool(o, "right", c->right);
    lt_out_key_int(o, "tokens", c->tokens);
    if (c->scored) {
        lt_out_key_real(o, "score", c->score);
        lt_out_key_real(o, "kl", c->kl);
    }
    lt_out_key(o, "text");
    lt_out_str(o, text, n);
    lt_out_shut(o, '}');
    lt_out_raw(o, "\n", 1);
}

static lt_err judge(const lt_experiment *e, int64_t cell, const char *text, size_t n, bool *right) {
    const lt_experiment_place p = lt_experiment_place_of(e, cell);
    const lt_experiment_task *t = &e->tasks[p.task];
    const lt_experiment_problem *problem = &t->problems[p.problem];
    lt_checker *checker = NULL;
    lt_err err;

    LT_TRY(lt_checker_open(&checker, problem->checker, problem->answer, strlen(problem->answer)));
    err = lt_checker_run(checker, text, n, t->strict ? LT_ANSWER_STRICT : LT_ANSWER_LENIENT, right,
                         NULL);
    lt_checker_close(checker);
    return err;
}

static lt_err keep(run *r, int64_t cell, const json_t *answer) {
    lt_experiment *e = r->e;
    lt_experiment_cell *c = &e->cells[cell];
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    const json_t *text = e->chat ? json_object_get(json_object_get(choice, "message"), "content")
                                 : json_object_get(choice, "text");
    const json_t *alignment = json_object_get(answer, "alignment");
    const json_t *usage = json_object_get(answer, "usage");
    const char *said = json_is_string(text) ? json_string_value(text) : "";
    const size_t said_n = json_string_length(text);
    lt_json_out o = {0};
    ssize_t wrote;

    LT_TRY(judge(e, cell, said, said_n, &c->right));
    c->tokens = (int32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    c->scored = json_is_number(json_object_get(alignment, "score"));
    c->score = json_number_value(json_object_get(alignment, "score"));
    c->kl = json_number_value(json_object_get(alignment, "kl_bound"));
    put_answer(e, cell, said, said_n, &o);
    wrote = o.failed ? -1 : write(r->fd, o.data, o.n);
    if (o.failed || wrote != (ssize_t)o.n) {
        lt_out_free(&o);
        LT_FAIL(LT_ERR_IO, "%s: results: %s", e->out, strerror(errno));
    }
    lt_out_free(&o);
    c->done = true;
    e->n_done++;
    return LT_OK;
}

/* ---- Requests ---- */

/* The reward "gold" is whether the answer is right. */
static int set_gold(json_t *request, const lt_experiment_problem *problem, bool strict) {
    json_t *gold = json_pack("{s:s, s:s, s:b}", "check", lt_check_name(problem->checker), "answer",
                             problem->answer, "strict", strict);
    return json_object_set_new(json_object_get(request, "alignment"), "reward", gold);
}

static char *body_of(const lt_experiment *e, int64_t cell) {
    const lt_experiment_place p = lt_experiment_place_of(e, cell);
    const lt_experiment_config *c = &e->configs[p.config];
    const lt_experiment_task *t = &e->tasks[p.task];
    const lt_experiment_problem *problem = &t->problems[p.problem];
    const uint64_t seed = lt_rng_mix(lt_rng_mix((uint64_t)e->seeds[p.seed]) + (uint64_t)p.problem);
    json_t *request = json_deep_copy(c->request);
    char *body = NULL;
    int failed = request == NULL;

    failed |= json_object_set_new(request, e->chat ? "messages" : "prompt",
                                  e->chat ? json_loads(problem->prompt, 0, NULL)
                                          : json_string(problem->prompt));
    failed |= json_object_set_new(request, "seed", json_integer((json_int_t)(seed >> 11)));
    if (!e->chat && json_object_get(request, "stop") == NULL) {
        failed |= json_object_set_new(request, "stop", json_string("\n\n"));
    }
    failed |= c->gold ? set_gold(request, problem, t->strict) : 0;
    if (failed == 0) {
        body = json_dumps(request, JSON_COMPACT);
    }
    json_decref(request);
    return body;
}

static char *request_of(void *ctx, int64_t cell) {
    const run *r = ctx;
    return body_of(r->e, cell);
}

static int64_t next_cell(void *ctx) {
    run *r = ctx;
    while (r->next < r->end && r->e->cells[r->next].done) {
        r->next++;
    }
    return r->next < r->end ? r->next++ : -1;
}

static lt_err take_answer(void *ctx, int64_t cell, const json_t *answer) {
    run *r = ctx;
    LT_TRY(keep(r, cell, answer));
    if (r->host->progress != NULL) {
        r->host->progress(r->host->ctx, r->e->n_done, r->e->n_cells);
    }
    return LT_OK;
}

static void name_cell(void *ctx, int64_t cell, char *out, size_t room) {
    const run *r = ctx;
    const lt_experiment_place p = lt_experiment_place_of(r->e, cell);
    snprintf(out, room, "method %s, task %s, problem %lld", r->e->configs[p.config].method,
             r->e->tasks[p.task].name, (long long)p.problem);
}

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    run *r = ctx;
    return r->host->load(r->host->ctx, &r->e->models[r->model], model, tokenizer);
}

/* ---- Models, one behind the other ---- */

static lt_err run_model(run *r) {
    const lt_local_requests a = {.model = r->e->models[r->model].path,
                                 .path = r->e->chat ? "/v1/chat/completions" : "/v1/completions",
                                 .max_running = r->e->max_running,
                                 .deterministic = true,
                                 .load = load,
                                 .next = next_cell,
                                 .body = request_of,
                                 .take = take_answer,
                                 .name = name_cell,
                                 .ctx = r};
    const lt_err err = lt_local_requests_run(&a);
    r->host->unload(r->host->ctx);
    return err == LT_ERR_INTERRUPTED
               ? lt_error_set(err,
                              "%s: stopped after %lld of %lld requests; the same command continues",
                              r->e->out, (long long)r->e->n_done, (long long)r->e->n_cells)
               : err;
}

static bool is_done(const run *r) {
    for (int64_t i = r->next; i < r->end; i++) {
        if (!r->e->cells[i].done) {
            return false;
        }
    }
    return true;
}

static lt_err run_models(run *r) {
    const int64_t each = r->e->n_cells / r->e->n_models;
    for (r->model = 0; r->model < r->e->n_models; r->model++) {
        r->next = r->model * each;
        r->end = r->next + each;
        if (is_done(r)) {
            continue;
        }
        LT_TRY(run_model(r));
    }
    return LT_OK;
}

lt_err lt_experiment_read(lt_experiment *e) {
    run r = {.e = e, .fd = -1};
    char path[LT_PATH_BYTES];
    lt_err err = open_results(&r, path);
    if (r.fd >= 0) {
        close(r.fd);
    }
    return err == LT_OK ? lt_experiment_report(e) : err;
}

lt_err lt_experiment_run(lt_experiment *e, const lt_experiment_host *host) {
    run r = {.e = e, .host = host, .fd = -1};
    char path[LT_PATH_BYTES];
    lt_err err = LT_OK;

    LT_TRY_DONE(open_results(&r, path));
    LT_TRY_DONE(run_models(&r));
    LT_TRY_DONE(sort_results(e, path));
    LT_TRY_DONE(lt_experiment_report(e));
done:
    if (r.fd >= 0) {
        close(r.fd);
    }
    return err;
}
