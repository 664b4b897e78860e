/* Grammars are compiled outside the event loop: while one is being compiled, for as long as the
 * test chooses, other clients get complete answers; a client that leaves cancels its grammar; the
 * queue is bounded; the server shuts down in order. No test here uses a clock: if the loop
 * waited, the test would hang. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <event2/thread.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "serve/api/compile.h"
#include "serve/api/server.h"
#include "unit/letters.h"

enum { V = 64, SEQ = 2048, REPLY_BYTES = 1 << 16 };

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* The compiler signals when it begins a grammar, and continues when it may. */
typedef struct {
    sem_t began, may;
    atomic_int n_begun;
} gate;

static void gate_open(gate *g) {
    sem_init(&g->began, 0, 0);
    sem_init(&g->may, 0, 0);
    atomic_store(&g->n_begun, 0);
}

static void before_compile(void *ctx) {
    gate *g = ctx;
    atomic_fetch_add(&g->n_begun, 1);
    sem_post(&g->began);
    while (sem_wait(&g->may) != 0) {}
}

static void must_begin(gate *g) {
    struct timespec by;
    clock_gettime(CLOCK_REALTIME, &by);
    by.tv_sec += 20;
    if (sem_timedwait(&g->began, &by) != 0) {
        fail_msg("no grammar is begun");
    }
}

/* ---- The compiler alone ---- */

static int n_told;

static void told(lt_compile *job) {
    n_told++;
    *(bool *)job->user = true;
}

static void turn(struct event_base *base, int until) {
    while (n_told < until) {
        assert_int_equal(event_base_loop(base, EVLOOP_ONCE | EVLOOP_NO_EXIT_ON_EMPTY), 0);
    }
}

static void the_queue_is_bounded_and_jobs_can_leave(void **state) {
    lt_tokenizer *t = letter_tokenizer(letters);
    lt_compiler *c = NULL;
    lt_compile jobs[5] = {{.chat = false}};
    bool done[5] = {false};
    gate g;
    (void)state;
    evthread_use_pthreads();
    struct event_base *base = event_base_new();
    struct event *idle = event_new(base, -1, EV_PERSIST, NULL, NULL);
    gate_open(&g);
    n_told = 0;
    must(lt_compiler_open(&c, &(lt_compiler_options){.base = base,
                                                     .tokenizer = t,
                                                     .max_waiting = 4,
                                                     .done = told,
                                                     .before = before_compile,
                                                     .ctx = &g}),
         "compiler");
    for (int i = 0; i < 5; i++) {
        const char *const form = i == 2 ? "[ab" : "[ab]{2}";
        jobs[i].what.kind = LT_GRAMMAR_REGEX;
        jobs[i].what.form = form;
        jobs[i].what.form_bytes = strlen(form);
        jobs[i].user = &done[i];
    }
    must(lt_compiler_submit(c, &jobs[0]), "first");
    must_begin(&g);
    for (int i = 1; i < 4; i++) {
        must(lt_compiler_submit(c, &jobs[i]), "waiting");
    }
    assert_int_equal(lt_compiler_submit(c, &jobs[4]), LT_ERR_LIMIT);
    assert_int_equal(lt_compiler_waiting(c), 4);
    assert_true(lt_compiler_cancel(c, &jobs[3]));  /* The last of the list. */
    assert_false(lt_compiler_cancel(c, &jobs[0])); /* It has begun, and will be reported. */
    must(lt_compiler_submit(c, &jobs[4]), "there is room again");
    for (int i = 0; i < 4; i++) {
        sem_post(&g.may);
    }
    turn(base, 4);
    assert_true(done[0] && done[1] && done[2] && !done[3] && done[4]);
    assert_int_equal(jobs[0].err, LT_ERR_STATE);
    assert_int_equal(jobs[1].err, LT_OK);
    assert_int_equal(jobs[2].err, LT_ERR_FORMAT);
    assert_true(jobs[2].message[0] != '\0');
    assert_int_equal(jobs[4].err, LT_OK);
    assert_int_equal(lt_compiler_waiting(c), 0);
    lt_grammar_close(jobs[1].grammar);
    lt_grammar_close(jobs[4].grammar);
    lt_compiler_close(c);
    event_free(idle);
    event_base_free(base);
    lt_tokenizer_close(t);
}

/* A kept grammar is found again for the same job, and for no other: each of these differs from
 * the first in one thing only. */
static void each_difference_makes_another_grammar(void **state) {
    enum { JOBS = 14 };
    static lt_compile jobs[2 * JOBS];
    static bool done[2 * JOBS];
    static const char *const forms[] = {"[\"ab\"]", "[ab]{2}", "[ab]{3}"};
    lt_tokenizer *t = letter_tokenizer(letters);
    json_error_t none;
    json_t *tools = json_loads(
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\"}}}, {\"type\": \"function\", \"function\": {\"name\": \"g\", \"parameters\": "
        "{\"type\": \"object\"}}}]",
        0, &none);
    json_t *one = json_array();
    lt_compiler *c = NULL;
    lt_grammar_keep_stats kept;
    (void)state;
    assert_non_null(tools);
    json_array_append(one, json_array_get(tools, 0));
    evthread_use_pthreads();
    struct event_base *base = event_base_new();
    struct event *idle = event_new(base, -1, EV_PERSIST, NULL, NULL);
    n_told = 0;
    must(lt_compiler_open(&c, &(lt_compiler_options){.base = base,
                                                     .tokenizer = t,
                                                     .max_waiting = 2 * JOBS,
                                                     .keep_bytes = (size_t)64 << 20,
                                                     .done = told}),
         "compiler");
    for (int i = 0; i < 2 * JOBS; i++) {
        lt_parse_grammar_options *w = &jobs[i].what;
        const int k = i % JOBS;
        /* Jobs of chats: the last things in which jobs can differ, one by one. */
        jobs[i] = (lt_compile){.chat = k >= 3, .user = &done[i]};
        *w = (lt_parse_grammar_options){.kind = k == 1 ? LT_GRAMMAR_REGEX : LT_GRAMMAR_CHOICE,
                                        .form = forms[k == 2 ? 1 : 0],
                                        .has_form = true};
        if (k == 2) {
            w->kind = LT_GRAMMAR_REGEX;
        }
        if (k >= 3) {
            *w = (lt_parse_grammar_options){.marks = {.format = LT_PARSE_HERMES,
                                                      .think_open = k == 4 ? "[T]" : "<think>",
                                                      .think_close = k == 5 ? "[U]" : "</think>"},
                                            .reasoning = k != 6,
                                            .thinks = k == 7,
                                            .tools = k == 8 ? one : tools,
                                            .forced = k == 9,
                                            .parallel = k != 10,
                                            .name = k == 11 ? "g" : NULL,
                                            .has_form = k >= 12,
                                            .kind = LT_GRAMMAR_REGEX,
                                            .form = k == 12   ? forms[1]
                                                    : k == 13 ? forms[2]
                                                              : NULL};
        }
        w->form_bytes = w->form != NULL ? strlen(w->form) : 0;
    }
    for (int i = 0; i < 2 * JOBS; i++) {
        must(lt_compiler_submit(c, &jobs[i]), "submit");
        turn(base, i + 1);
        if (jobs[i].err != LT_OK) {
            fail_msg("job %d: %s", i, jobs[i].message);
        }
        lt_compiler_get_kept(c, &kept);
        assert_int_equal(kept.made, i < JOBS ? i + 1 : JOBS);
        assert_int_equal(kept.found, i < JOBS ? 0 : i + 1 - JOBS);
    }
    for (int i = 0; i < 2 * JOBS; i++) {
        assert_true(done[i]);
        lt_grammar_close(jobs[i].grammar);
    }
    lt_compiler_close(c);
    event_free(idle);
    event_base_free(base);
    lt_tokenizer_close(t);
    json_decref(one);
    json_decref(tools);
}

/* ---- The server ---- */

typedef struct {
    gate gate;
    lt_server *server;
    pthread_t thread;
    lt_err err;
    int port;
} served;

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const lt_model_spec spec = {.family = LT_FAMILY_LLAMA,
                                .n_layers = 1,
                                .width = 32,
                                .n_heads = 2,
                                .n_kv_heads = 2,
                                .head_dim = 16,
                                .ffn_width = 32,
                                .vocab_size = V,
                                .max_seq = SEQ,
                                .norm_eps = 1e-5f,
                                .act = 2, /* SiLU. */
                                .gated = true,
                                .embed_scale = 1.0f,
                                .pos = LT_POS_ROPE,
                                .rope_theta = 10000,
                                .bos_id = -1,
                                .eos = {.ids = {63}, .n = 1},
                                .pad_id = -1,
                                .init_std = 0.15f};
    (void)ctx;
    *tokenizer = letter_tokenizer(letters);
    return lt_model_create(model, &spec, NULL, 7);
}

static void *serve(void *ctx) {
    served *s = ctx;
    s->err = lt_server_run(s->server);
    return NULL;
}

static int connect_to(const served *s) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)s->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void ask(int fd, const char *method, const char *path, const char *body) {
    char text[2048];
    const int n = snprintf(text, sizeof text,
                           "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
                           "%zu\r\n\r\n%s",
                           method, path, strlen(body), body);
    assert_true(n > 0 && n < (int)sizeof text);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
}

/* Read the whole answer, to the end of the connection. Returns its status. */
static int hear_all(int fd, char answer[REPLY_BYTES]) {
    size_t n = 0;
    ssize_t got;
    int status = 0;
    while ((got = recv(fd, answer + n, REPLY_BYTES - 1 - n, 0)) > 0) {
        n += (size_t)got;
    }
    answer[n] = '\0';
    close(fd);
    assert_int_equal(sscanf(answer, "HTTP/1.1 %d", &status), 1);
    return status;
}

static int complete(const served *s, const char *body, char answer[REPLY_BYTES]) {
    const int fd = connect_to(s);
    ask(fd, "POST", "/v1/completions", body);
    return hear_all(fd, answer);
}

static bool silent(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
}

static void start(served *s, double drain_s) {
    static char answer[REPLY_BYTES];
    lt_server_options o = lt_server_defaults();
    gate_open(&s->gate);
    o.port = 0;
    o.model = "letters";
    o.template = "plain";
    o.load = load;
    o.ctx = &s->gate;
    o.before_compile = before_compile;
    o.quiet = true;
    o.drain_s = drain_s;
    o.engine.max_running = 8;
    o.engine.max_waiting = 8;
    must(lt_server_open(&s->server, &o), "server");
    s->port = lt_server_port(s->server);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
    for (int status = 0; status != 200;) {
        const int fd = connect_to(s);
        ask(fd, "GET", "/health", "");
        status = hear_all(fd, answer);
    }
}

static void end(served *s) {
    lt_server_stop(s->server);
    pthread_join(s->thread, NULL);
    must(s->err, "run");
    lt_server_close(s->server);
}

#define FORM  "{\"prompt\": \"ab\", \"max_tokens\": 8, \"guided_regex\": \"[xyz]{3}\"}"
#define PLAIN "{\"prompt\": \"ab\", \"max_tokens\": 8, \"ignore_eos\": true}"
#define TOOLS                                                                                      \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": 8, \"tools\": "    \
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "        \
    "\"object\"}}}]}"

static void other_clients_are_served(void **state) {
    static char answer[REPLY_BYTES];
    served s = {0};
    int slow;
    (void)state;
    start(&s, 30);
    slow = connect_to(&s);
    ask(slow, "POST", "/v1/completions", FORM);
    must_begin(&s.gate);
    for (int i = 0; i < 3; i++) { /* All the while the compiler stands still. */
        assert_int_equal(complete(&s, PLAIN, answer), 200);
        assert_non_null(strstr(answer, "\"finish_reason\":\"length\""));
    }
    assert_true(silent(slow));
    sem_post(&s.gate.may);
    assert_int_equal(hear_all(slow, answer), 200);
    const char *const text = strstr(answer, "\"text\":\"");
    assert_true(text != NULL && strspn(text + 8, "xyz") == 3 && text[11] == '"');

    slow = connect_to(&s);
    ask(slow, "POST", "/v1/chat/completions", TOOLS);
    must_begin(&s.gate);
    assert_int_equal(complete(&s, PLAIN, answer), 200);
    assert_true(silent(slow));
    sem_post(&s.gate.may);
    assert_int_equal(hear_all(slow, answer), 200);
    end(&s);
}

/* The second request for the same grammar waits for nothing, and neither does one that came while
 * the first was being compiled. */
static void a_grammar_is_compiled_once(void **state) {
    static char answer[REPLY_BYTES];
    served s = {0};
    int first, second;
    (void)state;
    start(&s, 30);
    first = connect_to(&s);
    ask(first, "POST", "/v1/completions", FORM);
    must_begin(&s.gate);
    second = connect_to(&s);
    ask(second, "POST", "/v1/completions", FORM);
    assert_int_equal(complete(&s, PLAIN, answer), 200); /* The loop has read both. */
    sem_post(&s.gate.may);
    assert_int_equal(hear_all(first, answer), 200);
    assert_int_equal(hear_all(second, answer), 200);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(complete(&s, FORM, answer), 200);
        const char *const text = strstr(answer, "\"text\":\"");
        assert_true(text != NULL && strspn(text + 8, "xyz") == 3 && text[11] == '"');
    }
    sem_post(&s.gate.may);
    for (int i = 0; i < 2; i++) {
        const int fd = connect_to(&s);
        ask(fd, "POST", "/v1/chat/completions", TOOLS);
        assert_int_equal(hear_all(fd, answer), 200);
    }
    assert_int_equal(atomic_load(&s.gate.n_begun), 2);
    first = connect_to(&s);
    ask(first, "GET", "/metrics", "");
    assert_int_equal(hear_all(first, answer), 200);
    assert_non_null(strstr(answer, "lateen_grammars_made_total{"));
    assert_non_null(strstr(strstr(answer, "lateen_grammars_made_total{"), "} 2\n"));
    assert_non_null(strstr(strstr(answer, "lateen_grammars_found_total{"), "} 5\n"));
    end(&s);
}

static void bad_grammars_give_400(void **state) {
    static char answer[REPLY_BYTES];
    served s = {0};
    (void)state;
    start(&s, 30);
    sem_post(&s.gate.may);
    assert_int_equal(
        complete(&s, "{\"prompt\": \"ab\", \"guided_regex\": \"[xyz\", \"stream\": true}", answer),
        400);
    assert_non_null(strstr(answer, "\"param\":\"guided_regex\""));
    assert_non_null(strstr(answer, "invalid_request_error"));
    assert_int_equal(complete(&s, PLAIN, answer), 200);
    end(&s);
}

/* One client leaves while its grammar waits, one while its grammar is compiled; the third gets
 * its own. */
static void clients_that_leave_cancel_their_grammar(void **state) {
    static char answer[REPLY_BYTES];
    served s = {0};
    int made, waits, stays;
    (void)state;
    start(&s, 30);
    made = connect_to(&s);
    ask(made, "POST", "/v1/completions", FORM);
    must_begin(&s.gate);
    waits = connect_to(&s);
    ask(waits, "POST", "/v1/completions", FORM);
    assert_int_equal(complete(&s, PLAIN, answer), 200); /* The loop has read it. */
    stays = connect_to(&s);
    ask(stays, "POST", "/v1/completions", FORM);
    close(waits);
    close(made);
    /* After half a second a client that left is told from one that only sends nothing more. */
    sleep(1);
    assert_int_equal(complete(&s, PLAIN, answer), 200); /* And it has noticed that they left. */
    sem_post(&s.gate.may);
    must_begin(&s.gate);
    sem_post(&s.gate.may);
    assert_int_equal(hear_all(stays, answer), 200);
    assert_int_equal(atomic_load(&s.gate.n_begun), 2);
    end(&s); /* Drained: no answer is missing. */
}

static void shutdown_during_a_compilation(void **state) {
    static char answer[REPLY_BYTES];
    served s = {0};
    int made, waits;
    (void)state;
    start(&s, 0);
    made = connect_to(&s);
    ask(made, "POST", "/v1/completions", FORM);
    must_begin(&s.gate);
    waits = connect_to(&s);
    ask(waits, "POST", "/v1/completions", FORM);
    assert_int_equal(complete(&s, PLAIN, answer), 200);
    lt_server_stop(s.server); /* At once. */
    pthread_join(s.thread, NULL);
    must(s.err, "run");
    sem_post(&s.gate.may);
    sem_post(&s.gate.may); /* The second may begin before the server is closed. */
    lt_server_close(s.server);
    close(made);
    close(waits);
}

int main(void) {
    alarm(120); /* A loop that waits would wait for ever. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_queue_is_bounded_and_jobs_can_leave),
        cmocka_unit_test(each_difference_makes_another_grammar),
        cmocka_unit_test(other_clients_are_served),
        cmocka_unit_test(a_grammar_is_compiled_once),
        cmocka_unit_test(bad_grammars_give_400),
        cmocka_unit_test(clients_that_leave_cancel_their_grammar),
        cmocka_unit_test(shutdown_during_a_compilation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
