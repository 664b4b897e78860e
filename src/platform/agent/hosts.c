/* hosts.c: see hosts.h. */
#include "platform/agent/hosts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/encoding.h"
#include "base/error.h"
#include "comm/shm.h"
#include "platform/agent/remote.h"

#define UNREACHED 255 /* ssh's exit status when it cannot reach a machine. */

extern char **environ;

/* ---- The list -------------------------------------------------------------------------------- */

static bool is_here(const char *name) {
    char own[256] = "";
    (void)gethostname(own, sizeof own - 1);
    return strcmp(name, "localhost") == 0 || strcmp(name, own) == 0;
}

static lt_err add_host(lt_hosts *h, const char *word, size_t bytes) {
    char text[256], *colon, *end = NULL;
    lt_host *x = &h->all[h->n];
    long ranks = 1;
    if (bytes == 0 || bytes >= sizeof text || h->n == LT_HOSTS_MOST) {
        LT_FAIL(LT_ERR_ARG, "--hosts: '%.*s' is not HOST or HOST:RANKS, or one of more than %d",
                (int)(bytes < 64 ? bytes : 64), word, LT_HOSTS_MOST);
    }
    (void)snprintf(text, sizeof text, "%.*s", (int)bytes, word);
    colon = strrchr(text, ':');
    if (colon != NULL) {
        ranks = strtol(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || ranks < 1 ||
            ranks > LT_SHM_MOST_RANKS) {
            LT_FAIL(LT_ERR_ARG, "--hosts: '%s': a machine has 1 to %d ranks", text,
                    LT_SHM_MOST_RANKS);
        }
        *colon = '\0';
    }
    if (text[0] == '\0' || text[0] == '-' ||
        strcspn(text, " '\"\\$`;&|<>()*?!#~\t:[]") != strlen(text)) {
        LT_FAIL(LT_ERR_ARG, "--hosts: '%.*s' is not the name or the IPv4 address of a machine",
                (int)bytes, word);
    }
    for (int i = 0; i < h->n; i++) {
        if (strcmp(h->all[i].name, text) == 0 || (h->all[i].here && is_here(text))) {
            LT_FAIL(LT_ERR_ARG,
                    "--hosts: %s and %s are the same machine; %s:%ld has the ranks of both",
                    h->all[i].name, text, text, h->all[i].ranks + ranks);
        }
    }
    *x = (lt_host){.ranks = (int)ranks, .here = is_here(text)};
    (void)snprintf(x->name, sizeof x->name, "%s", text);
    h->n++;
    return LT_OK;
}

/* The first machine that is not this one; NULL: there is none. */
static const lt_host *first_other(const lt_hosts *h) {
    for (int i = 0; i < h->n; i++) {
        if (!h->all[i].here) {
            return &h->all[i];
        }
    }
    return NULL;
}

/* The address from which packets to the first other machine leave. */
static lt_err find_address(lt_hosts *h) {
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
    const lt_host *other = first_other(h);
    const char *at = other != NULL ? strchr(other->name, '@') : NULL, *name = at != NULL ? at + 1
                                                                              : other != NULL
                                                                                  ? other->name
                                                                                  : "127.0.0.1";
    struct addrinfo *list = NULL;
    struct sockaddr_in a = {0};
    socklen_t bytes = sizeof a;
    const int failed = getaddrinfo(name, "9", &hints, &list),
              fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool found = failed == 0 && fd >= 0 &&
                       connect(fd, list->ai_addr, list->ai_addrlen) == 0 &&
                       getsockname(fd, (struct sockaddr *)&a, &bytes) == 0 &&
                       inet_ntop(AF_INET, &a.sin_addr, h->address, sizeof h->address) != NULL;
    if (list != NULL) {
        freeaddrinfo(list);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (!found) {
        LT_FAIL(LT_ERR_ARG,
                "--hosts: %s has no IPv4 address here (%s); --address names the one at "
                "which it reaches this machine",
                name, failed != 0 ? gai_strerror(failed) : strerror(errno));
    }
    return LT_OK;
}

/* The next word of *rest, which is changed: up to a space that is not within quotes; the quotes are
 * removed. NULL: there is none. *open: a quote was not closed. */
static char *next_word(char **rest, bool *open) {
    char *from = *rest + strspn(*rest, " "), *word = from, *to = from, quote = '\0';
    if (*from == '\0') {
        return NULL;
    }
    for (; *from != '\0' && (quote != '\0' || *from != ' '); from++) {
        if (*from == quote) {
            quote = '\0';
        } else if (quote == '\0' && (*from == '"' || *from == '\'')) {
            quote = *from;
        } else {
            *to++ = *from;
        }
    }
    *open = quote != '\0';
    *rest = *from != '\0' ? from + 1 : from;
    *to = '\0';
    return word;
}

static lt_err split_login(lt_hosts *h, const char *login) {
    char *rest = h->login, *word;
    bool open = false;
    int n = 0;
    if (snprintf(h->login, sizeof h->login, "%s", login[0] != '\0' ? login : LT_LOGIN) >=
        (int)sizeof h->login) {
        LT_FAIL(LT_ERR_ARG, "--login has more than %zu bytes", sizeof h->login - 1);
    }
    while ((word = next_word(&rest, &open)) != NULL) {
        if (n == LT_LOGIN_MOST) {
            LT_FAIL(LT_ERR_ARG, "--login has more than %d words", LT_LOGIN_MOST);
        }
        h->login_words[n++] = word;
    }
    if (open) {
        LT_FAIL(LT_ERR_ARG, "--login %s: a quote without its end", login);
    }
    return n > 0 ? LT_OK : lt_error_set(LT_ERR_ARG, "--login has no command");
}

/* Assign ranks to machines: those of a machine are consecutive; spare machines have none. */
static lt_err place_ranks(lt_hosts *h, int spares) {
    int rank = 0;
    if (spares >= h->n) {
        LT_FAIL(LT_ERR_ARG, "--spares %d of the %d machines of --hosts: none is left for the ranks",
                spares, h->n);
    }
    for (int i = 0; i < h->n - spares; i++) {
        h->n_ranks += h->all[i].ranks;
    }
    if (h->n_ranks > LT_SHM_MOST_RANKS) {
        LT_FAIL(LT_ERR_ARG, "--hosts: %d ranks; at most %d are possible", h->n_ranks,
                LT_SHM_MOST_RANKS);
    }
    h->seen = calloc((size_t)h->n_ranks, sizeof *h->seen);
    h->places = calloc((size_t)h->n_ranks, sizeof *h->places);
    if (h->seen == NULL || h->places == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d ranks", h->n_ranks);
    }
    for (int i = 0; i < h->n - spares; i++) {
        for (int k = 0; k < h->all[i].ranks; k++) {
            h->places[rank++] = i;
        }
    }
    return LT_OK;
}

lt_err lt_hosts_open(lt_hosts *h, const char *text, int spares, const char *login,
                     const char *address) {
    const char *at = text;
    *h = (lt_hosts){.n = 0};
    while (at[0] != '\0') {
        const size_t bytes = strcspn(at, ",");
        LT_TRY(add_host(h, at, bytes));
        at += bytes + (at[bytes] == ',' && at[bytes + 1] != '\0');
        if (at[0] == ',') {
            LT_FAIL(LT_ERR_ARG, "--hosts '%s': a comma without a machine", text);
        }
    }
    if (h->n == 0) {
        return LT_OK;
    }
    LT_TRY(place_ranks(h, spares));
    LT_TRY(split_login(h, login));
    const ssize_t n = readlink("/proc/self/exe", h->program, sizeof h->program - 1);
    h->program[n > 0 ? n : 0] = '\0';
    if (first_other(h) != NULL &&
        (n <= 0 || strcspn(h->program, " '\"\\$`;&|<>()*?!#~\t") != (size_t)n)) {
        LT_FAIL(LT_ERR_ARG,
                "--hosts: the path of this program, '%s', has a character that a "
                "shell reads; move it",
                h->program);
    }
    if (address[0] != '\0') {
        (void)snprintf(h->address, sizeof h->address, "%s", address);
        return LT_OK;
    }
    return find_address(h);
}

void lt_hosts_close(lt_hosts *h) {
    free(h->seen);
    free(h->places);
    h->seen = NULL;
    h->places = NULL;
}

void lt_hosts_place(lt_hosts *h, int rank, int host) {
    LT_ASSERT(rank < h->n_ranks && host < h->n);
    h->places[rank] = host;
}

const lt_host *lt_hosts_of_rank(const lt_hosts *h, int rank) {
    return h->n > 0 ? &h->all[h->places[rank]] : NULL;
}

void lt_hosts_count(const lt_hosts *h, int rank, int n_ranks, int *local, int *locals) {
    *local = *locals = 0;
    for (int r = 0; h->n > 0 && r < n_ranks; r++) {
        *local += h->places[r] == h->places[rank] && r < rank;
        *locals += h->places[r] == h->places[rank];
    }
}

bool lt_hosts_far(const lt_hosts *h, int rank) {
    const lt_host *x = lt_hosts_of_rank(h, rank);
    return x != NULL && !x->here;
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* A variable of the environment as JSON: its text or, if that is not UTF-8, a list of one string,
 * its bytes as hexadecimal digits. */
static json_t *variable_of(const char *text) {
    json_t *word = json_string(text);
    if (word == NULL) {
        const size_t n = strlen(text);
        char *digits = malloc(2 * n + 1);
        if (digits != NULL) {
            lt_hex_write(digits, (const unsigned char *)text, n);
            word = json_pack("[s]", digits);
        }
        free(digits);
    }
    return word;
}

/* The line that the agent on the other machine reads; free it. NULL: out of memory, or words that
 * are not UTF-8. */
static char *describe(const lt_processes *ranks, const lt_environment *e) {
    json_t *words = json_array(), *environment = json_array(), *all;
    char folder[LT_PATH_BYTES] = "", program[LT_REMOTE_PROGRAM], *text, *line = NULL;
    bool whole = true;
    for (int i = 0; ranks->argv[i] != NULL; i++) {
        whole = json_array_append_new(words, json_string(ranks->argv[i])) == 0 && whole;
    }
    for (int i = 0; environ[i] != NULL; i++) {
        json_array_append_new(environment, variable_of(environ[i]));
    }
    if (!whole || getcwd(folder, sizeof folder) == NULL || lt_remote_program(program) != LT_OK) {
        json_decref(words);
        json_decref(environment);
        return NULL;
    }
    all = json_pack("{s:s, s:s, s:s, s:o, s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:f, "
                    "s:f, s:s, s:i, s:I, s:f, s:b}",
                    "version", LT_VERSION, "program", program, "path", ranks->path, "words", words,
                    "folder", folder, "environment", environment, "rank", e->rank, "ranks", e->n,
                    "full", e->full, "local", e->local, "locals", e->locals, "store", e->store,
                    "token", e->token, "epoch", (json_int_t)e->epoch, "beat", e->beat_s, "silent",
                    e->silent_s, "memory", e->memory, "node", e->node, "snapshot",
                    (json_int_t)e->snapshot, "mtbf", e->mtbf_s, "keep", e->keep);
    text = all != NULL ? json_dumps(all, JSON_COMPACT) : NULL;
    if (text == NULL || asprintf(&line, "%s\n", text) < 0) {
        line = NULL;
    }
    free(text);
    json_decref(all);
    return line;
}

/* Run `lateen agent FLAG` on a machine, as a process whose standard input begins with the line. */
static lt_err start_agent(const lt_hosts *h, const lt_host *x, const lt_processes *of, int process,
                          const char *flag, const char *line) {
    const char *const after[] = {x->name, h->program, "agent", flag};
    char *words[LT_LOGIN_MOST + 5];
    lt_processes far = *of;
    int n = 0;
    for (; !x->here && h->login_words[n] != NULL; n++) {
        words[n] = h->login_words[n];
    }
    for (size_t i = x->here; i < sizeof after / sizeof *after; i++) {
        words[n++] = (char *)(uintptr_t)after[i];
    }
    words[n] = NULL;
    far.path = words[0];
    far.argv = words;
    return lt_process_start(&far, process, environ, line);
}

lt_err lt_hosts_start(const lt_hosts *h, lt_processes *ranks, const lt_environment *e) {
    const lt_host *x = lt_hosts_of_rank(h, e->rank);
    char *line = describe(ranks, e);
    lt_err err;
    if (line == NULL || strlen(line) >= LT_REMOTE_MOST) {
        free(line);
        LT_FAIL(LT_ERR_ARG,
                "rank %d on %s: its command line is not UTF-8, or it and its "
                "environment have more than %zu bytes",
                e->rank, x->name, LT_REMOTE_MOST);
    }
    err = start_agent(h, x, ranks, e->rank, "--rank", line);
    free(line);
    return err;
}

void lt_hosts_go_on(const lt_processes *ranks, int rank, uint64_t epoch) {
    (void)dprintf(ranks->all[rank].in, "epoch %llu\n", (unsigned long long)epoch);
}

lt_err lt_hosts_start_agent(const lt_hosts *h, int host, const lt_processes *agents,
                            const char *line) {
    return start_agent(h, &h->all[host], agents, host, "--machine", line);
}

/* ---- Watching -------------------------------------------------------------------------------- */

/* A value of the store. NULL: there is none, or none that is newer than *seen. */
static json_t *value_of(lt_comm_store_server *store, const char *what, int rank, uint64_t *seen) {
    char key[32], text[LT_BOARD_FOLDER + 1024];
    size_t bytes;
    uint64_t version;
    (void)snprintf(key, sizeof key, "%s/%d", what, rank);
    if (!lt_comm_store_server_peek(store, key, text, sizeof text, &bytes, &version) ||
        version == *seen) {
        return NULL;
    }
    *seen = version;
    return json_loadb(text, bytes, 0, NULL);
}

void lt_hosts_begin(lt_hosts *h) {
    if (h->n > 0) {
        memset(h->seen, 0, (size_t)h->n_ranks * sizeof *h->seen);
        h->began_s = lt_clock_s();
    }
}

void lt_hosts_find_late(const lt_hosts *h, int rank, lt_process *p, double now_s) {
    p->late = p->runs && lt_hosts_far(h, rank) && h->seen[rank] == 0 &&
              now_s > h->began_s + LT_HOSTS_LATE;
    if (p->late) {
        p->cut = true;
        p->status = UNREACHED << 8;
    }
}

void lt_hosts_look(lt_hosts *h, lt_comm_store_server *store, lt_board *board) {
    for (int r = 0; r < h->n_ranks; r++) {
        json_t *j = lt_hosts_far(h, r) ? value_of(store, "sight", r, &h->seen[r]) : NULL;
        const char *folder = "";
        lt_board_sight s;
        lt_board_room room;
        if (j != NULL && lt_remote_sight_read(j, &s, &room, &folder, lt_clock_ns())) {
            lt_board_show(board, r, &s, folder);
            lt_board_sizes(board, room.dp, room.least, room.rows);
        }
        json_decref(j);
    }
}

bool lt_hosts_end(lt_comm_store_server *store, int rank, int *status) {
    uint64_t seen = 0;
    json_t *j = value_of(store, "end", rank, &seen);
    const bool known = j != NULL && json_unpack(j, "{s:i}", "status", status) == 0;
    json_decref(j);
    return known;
}
