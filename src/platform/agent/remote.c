/* remote.c: see remote.h. */
#include "platform/agent/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/encoding.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/store.h"
#include "platform/agent/environment.h"
#include "platform/agent/memory.h"
#include "platform/agent/orders.h"
#include "platform/agent/process.h"

#define FIRST_S 60.0 /* How long to wait for the first line. */
#define LOOK_MS 50
/* How long to try to reach the launcher's store; how long each try may take. */
#define OPEN_S 30.0
#define TRY_S  2.0
/* While a rank waits for its next world: how often the launcher is asked whether it is alive, and
 * how long it has to answer. */
#define ASK_EVERY_S 5.0
#define ASK_S       5.0

/* ---- Reports to the store -------------------------------------------------------------------- */

static json_int_t age(uint64_t at_ns, uint64_t now_ns) {
    return at_ns == 0 ? -1 : at_ns < now_ns ? (json_int_t)(now_ns - at_ns) : 0;
}

static uint64_t time_of(json_int_t age_ns, uint64_t now_ns) {
    return age_ns < 0 ? 0 : (uint64_t)age_ns < now_ns ? now_ns - (uint64_t)age_ns : 1;
}

json_t *lt_remote_sight(const lt_board_sight *s, const lt_board_room *room, const char *folder,
                        uint64_t now_ns) {
    json_t *ages = json_array();
    for (int i = 0; i < LT_PHASES; i++) {
        json_array_append_new(ages, json_integer(age(s->at_ns[i], now_ns)));
    }
    return json_pack("{s:i, s:I, s:I, s:I, s:i, s:I, s:b, s:f, s:[i, i, I], s:s, s:o}", "phase",
                     (int)s->phase, "step", (json_int_t)s->step, "loaded",
                     (json_int_t)s->loaded_step, "step_age", age(s->step_ns, now_ns), "stop",
                     s->stop, "suspect", (json_int_t)s->suspect_step, "left", s->left, "slow",
                     s->slow, "sizes", room->dp, room->least, (json_int_t)room->rows, "folder",
                     folder, "ages", ages);
}

bool lt_remote_sight_read(const json_t *j, lt_board_sight *s, lt_board_room *room,
                          const char **folder, uint64_t now_ns) {
    json_int_t step, loaded, step_age, suspect, rows;
    json_t *ages;
    int phase, stop, left;
    double slow;
    if (json_unpack((json_t *)(uintptr_t)j,
                    "{s:i, s:I, s:I, s:I, s:i, s:I, s:b, s:F, s:[i, i, I], s:s, s:o}", "phase",
                    &phase, "step", &step, "loaded", &loaded, "step_age", &step_age, "stop", &stop,
                    "suspect", &suspect, "left", &left, "slow", &slow, "sizes", &room->dp,
                    &room->least, &rows, "folder", folder, "ages", &ages) != 0 ||
        phase < 0 || phase >= LT_PHASES || json_array_size(ages) != LT_PHASES) {
        return false;
    }
    *s = (lt_board_sight){.phase = (lt_phase)phase,
                          .step = step,
                          .loaded_step = loaded,
                          .step_ns = time_of(step_age, now_ns),
                          .stop = stop,
                          .suspect_step = suspect,
                          .left = left != 0,
                          .slow = slow};
    room->rows = rows;
    for (size_t i = 0; i < LT_PHASES; i++) {
        s->at_ns[i] = time_of(json_integer_value(json_array_get(ages, i)), now_ns);
    }
    return true;
}

lt_err lt_remote_program(char out[LT_REMOTE_PROGRAM]) {
    lt_file_map m;
    LT_TRY(lt_file_map_open(&m, "/proc/self/exe"));
    (void)snprintf(out, LT_REMOTE_PROGRAM, "%016llx",
                   (unsigned long long)XXH3_64bits(m.data, m.size_bytes));
    lt_file_map_close(&m);
    return LT_OK;
}

/* ---- What to start --------------------------------------------------------------------------- */

lt_err lt_remote_first_line(char **out) {
    lt_err err = LT_OK;
    const double until_s = lt_clock_s() + FIRST_S;
    char *text = malloc(LT_REMOTE_MOST);
    size_t n = 0;
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "agent: the first line of standard input");
    }
    /* Read byte by byte, because the bytes after the line have other readers. */
    while (n == 0 || text[n - 1] != '\n') {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        const double left_s = until_s - lt_clock_s();
        if (n == LT_REMOTE_MOST || left_s <= 0.0 || poll(&p, 1, (int)(left_s * 1e3) + 1) <= 0 ||
            read(STDIN_FILENO, text + n, 1) != 1) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "agent: standard input has no line that says what to do, "
                                        "as `lateen launch --hosts` writes it");
        }
        n++;
    }
    text[n - 1] = '\0';
    *out = text;
    text = NULL;
done:
    free(text);
    return err;
}

/* NAME=VALUE, as written by hosts.c; free it. NULL: out of memory, or it is not a variable. */
static char *variable_of(const json_t *word) {
    const char *text = json_string_value(json_is_array(word) ? json_array_get(word, 0) : word);
    const size_t n = text != NULL ? strlen(text) : 0;
    char *bytes;
    if (text == NULL || !json_is_array(word)) {
        return text != NULL ? strdup(text) : NULL;
    }
    bytes = n % 2 == 0 && lt_hex_is(text, n) ? malloc(n / 2 + 1) : NULL;
    if (bytes != NULL) {
        lt_hex_read((unsigned char *)bytes, text, n / 2);
        bytes[n / 2] = '\0';
    }
    return bytes;
}

static lt_err apply_environment(const json_t *list) {
    size_t i;
    json_t *word;
    if (clearenv() != 0) {
        LT_FAIL(LT_ERR_OOM, "agent: environment");
    }
    json_array_foreach(list, i, word) {
        char *text = variable_of(word), *equals = text != NULL ? strchr(text, '=') : NULL;
        if (equals != NULL) {
            *equals = '\0';
            (void)setenv(text, equals + 1, 1);
        }
        free(text);
    }
    return LT_OK;
}

lt_err lt_remote_check_build(const char *version, const char *program) {
    char own[LT_REMOTE_PROGRAM];
    if (strcmp(version, LT_VERSION) != 0) {
        LT_FAIL(LT_ERR_FORMAT,
                "agent: the launcher is version %s of lateen, and this machine has "
                "version %s",
                version, LT_VERSION);
    }
    LT_TRY(lt_remote_program(own));
    if (strcmp(program, own) != 0) {
        LT_FAIL(LT_ERR_FORMAT,
                "agent: the program of this machine is another build of version %s than the "
                "launcher's; ranks need the same file",
                version);
    }
    return LT_OK;
}

typedef struct {
    json_t *json;
    const char *path, *folder;
    char **words;
    lt_environment e;
} description;

static lt_err read_description(description *d, const char *text) {
    json_t *words, *environment;
    const char *version, *program;
    json_int_t epoch, snapshot;
    int keep;
    d->json = json_loads(text, 0, NULL);
    if (d->json == NULL ||
        json_unpack(
            d->json,
            "{s:s, s:s, s:s, s:o, s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:F, s:F, s:s, "
            "s:i, s:I, s:F, s:b}",
            "version", &version, "program", &program, "path", &d->path, "words", &words, "folder",
            &d->folder, "environment", &environment, "rank", &d->e.rank, "ranks", &d->e.n, "full",
            &d->e.full, "local", &d->e.local, "locals", &d->e.locals, "store", &d->e.store, "token",
            &d->e.token, "epoch", &epoch, "beat", &d->e.beat_s, "silent", &d->e.silent_s, "memory",
            &d->e.memory, "node", &d->e.node, "snapshot", &snapshot, "mtbf", &d->e.mtbf_s, "keep",
            &keep) != 0 ||
        d->e.n < 1 || d->e.rank < 0 || d->e.rank >= d->e.n || d->e.locals < 1) {
        LT_FAIL(LT_ERR_FORMAT, "agent: standard input describes no rank");
    }
    LT_TRY(lt_remote_check_build(version, program));
    d->e.epoch = (uint64_t)epoch;
    d->e.snapshot = snapshot;
    d->e.apart = true;
    d->e.keep = keep != 0;
    d->words = calloc(json_array_size(words) + 1, sizeof *d->words);
    if (d->words == NULL) {
        LT_FAIL(LT_ERR_OOM, "agent: command line");
    }
    for (size_t i = 0; i < json_array_size(words); i++) {
        d->words[i] = (char *)(uintptr_t)json_string_value(json_array_get(words, i));
    }
    if (chdir(d->folder) != 0) {
        LT_FAIL(LT_ERR_IO,
                "agent: the working folder of the launcher, %s, is not on this machine: "
                "%s",
                d->folder, strerror(errno));
    }
    return apply_environment(environment);
}

/* ---- While it runs --------------------------------------------------------------------------- */

/* Tell the store. It is not an error if the store is gone: the launcher handles that. */
static void tell(lt_comm_store *store, const char *what, int rank, json_t *value) {
    char key[32], *text = json_dumps(value, JSON_COMPACT);
    (void)snprintf(key, sizeof key, "%s/%d", what, rank);
    if (store != NULL && text != NULL &&
        lt_comm_store_set(store, key, text, strlen(text)) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    free(text);
    json_decref(value);
}

static bool same_sight(const lt_board_sight *a, const lt_board_sight *b) {
    bool same = a->phase == b->phase && a->step == b->step && a->loaded_step == b->loaded_step &&
                a->step_ns == b->step_ns && a->stop == b->stop &&
                a->suspect_step == b->suspect_step && a->left == b->left && a->slow == b->slow;
    for (int i = 0; i < LT_PHASES; i++) {
        same = same && a->at_ns[i] == b->at_ns[i];
    }
    return same;
}

/* The rank, and what its agent needs to watch it. */
typedef struct {
    description d;
    lt_processes ranks;
    lt_board *board;
    lt_comm_store *store;
    double asked_s; /* When the launcher was last found to be alive. */
} watcher;

/* Whether the launcher is alive: its store answers during any attempt. */
static bool launcher_lives(const watcher *w) {
    lt_comm_store *store = NULL;
    const lt_environment *e = &w->d.e;
    const lt_err err = lt_comm_store_open(&store, e->store, e->token, -1, e->epoch, ASK_S);
    lt_comm_store_close(store);
    return err == LT_OK || err == LT_ERR_STATE;
}

/* Whether the launcher or the connection to it is gone, even if orders are still to be read. */
static bool input_has_ended(void) {
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

/* Connect to the launcher's store, unless the launcher ends meanwhile. */
static lt_err open_store(watcher *w) {
    const lt_environment *e = &w->d.e;
    const double until_s = lt_clock_s() + OPEN_S;
    lt_err err;
    do {
        if (input_has_ended()) {
            LT_FAIL(LT_ERR_REMOTE, "agent: rank %d: the launcher ended before the rank began",
                    e->rank);
        }
        err = lt_comm_store_open(&w->store, e->store, e->token, -1, e->epoch, TRY_S);
    } while (err == LT_ERR_REMOTE && lt_clock_s() < until_s);
    return err;
}

/* The next attempt has begun, and the rank has survived: let it open the next world. */
static lt_err begin_world(watcher *w, uint64_t epoch) {
    lt_comm_store_close(w->store);
    w->store = NULL;
    w->d.e.epoch = epoch;
    LT_TRY(open_store(w));
    lt_board_clear(w->board);
    lt_board_begin(w->board, epoch);
    return LT_OK;
}

static lt_err obey(watcher *w, const char *line) {
    unsigned long long epoch;
    int number = 0;
    if (sscanf(line, "signal %d", &number) == 1 && number > 0 && number < NSIG) {
        lt_processes_signal(&w->ranks, number);
    }
    return sscanf(line, "epoch %llu", &epoch) == 1 ? begin_world(w, epoch) : LT_OK;
}

static void tell_sight(const watcher *w, lt_board_sight *told) {
    const lt_board_sight s = lt_board_seen(w->board, w->d.e.rank);
    if (!same_sight(&s, told)) {
        /* The ranks tell it before LOADED. */
        const lt_board_room room = lt_board_sizes_of(w->board);
        *told = s;
        tell(w->store, "sight", w->d.e.rank,
             lt_remote_sight(&s, &room, lt_board_folder_of(w->board), lt_clock_ns()));
    }
}

/* A rank in a world notices by itself that the launcher is out of reach, and ends; one that waits
 * for its next world does not. */
static bool is_forgotten(watcher *w) {
    if (!lt_board_seen(w->board, w->d.e.rank).left) {
        w->asked_s = lt_clock_s();
        return false;
    }
    if (lt_clock_s() < w->asked_s + ASK_EVERY_S) {
        return false;
    }
    w->asked_s = lt_clock_s();
    return !launcher_lives(w);
}

/* Wait until the rank has ended. *known false: it was killed, because the launcher or the
 * connection to it is gone. */
static lt_err watch(watcher *w, bool *known) {
    lt_process *p = &w->ranks.all[0];
    lt_board_sight told = {.step = -2};
    lt_orders o = {.n = 0};
    const char *line;
    *known = true;
    while (p->runs) {
        tell_sight(w, &told);
        (void)lt_processes_wait(&w->ranks, LOOK_MS);
        while ((line = lt_orders_next(&o, STDIN_FILENO, 0.0)) != NULL) {
            LT_TRY(obey(w, line));
        }
        w->ranks.signals = o.ended ? -1 : STDIN_FILENO;
        if (o.ended || is_forgotten(w)) {
            *known = false;
            lt_processes_signal(&w->ranks, SIGKILL);
        }
        p->runs = waitpid(p->pid, &p->status, WNOHANG) != p->pid;
    }
    lt_processes_drain(&w->ranks);
    lt_processes_signal(&w->ranks, SIGKILL); /* Kill processes that it has left behind. */
    return LT_OK;
}

lt_err lt_remote_run(int *status) {
    lt_err err = LT_OK;
    watcher w = {.ranks = {.plain = true, .signals = STDIN_FILENO}};
    lt_environment *e = &w.d.e;
    char *text = NULL, **words = NULL;
    int board_fd = -1;
    bool known;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&w.ranks.mask);
    LT_TRY_DONE(lt_remote_first_line(&text));
    LT_TRY_DONE(read_description(&w.d, text));
    LT_TRY_DONE(e->memory[0] != '\0' ? lt_memory_enter(e->memory) : LT_OK);
    LT_TRY_DONE(open_store(&w));
    LT_TRY_DONE(lt_board_make(&w.board, &board_fd, e->n));
    if (e->keep) {
        lt_board_keep_ranks(w.board);
    }
    e->board = board_fd;
    words = lt_environment_make(e);
    LT_TRY_DONE(words == NULL ? lt_error_set(LT_ERR_OOM, "agent: environment") : LT_OK);
    w.ranks.path = w.d.path;
    w.ranks.argv = w.d.words;
    LT_TRY_DONE(lt_processes_open(&w.ranks, 1));
    LT_TRY_DONE(lt_process_start(&w.ranks, 0, words, NULL));
    LT_TRY_DONE(watch(&w, &known));
    if (known) {
        tell(w.store, "end", e->rank, json_pack("{s:i}", "status", w.ranks.all[0].status));
    }
    *status = WIFSIGNALED(w.ranks.all[0].status) ? 128 + WTERMSIG(w.ranks.all[0].status)
                                                 : WEXITSTATUS(w.ranks.all[0].status);
done:
    if (w.ranks.all != NULL) {
        lt_processes_signal(&w.ranks, SIGKILL);
    }
    lt_processes_close(&w.ranks);
    lt_environment_free(words);
    lt_board_close(w.board);
    if (board_fd >= 0) {
        (void)close(board_fd);
    }
    lt_comm_store_close(w.store);
    free(w.d.words);
    json_decref(w.d.json);
    free(text);
    return err;
}
