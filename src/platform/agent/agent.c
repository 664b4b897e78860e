/* agent.c: see agent.h. The main thread finds snapshots and sends them; a second thread
 * receives. */
#include "platform/agent/agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "comm/store.h"
#include "platform/agent/memory.h"
#include "platform/agent/orders.h"
#include "platform/agent/remote.h"

#define HEAD_BYTES_MAX ((size_t)1 << 16)
#define PIECE_BYTES    ((size_t)1 << 20)
#define CONFIRMED      "ok\n"

typedef struct {
    char address[LT_AGENT_ADDRESS]; /* "": unknown, or gone. */
    json_t *sent;                   /* "rank-0/step-000000012": true */
} peer;

typedef struct {
    const lt_agent_options *o;
    char own[LT_PATH_BYTES], kept[LT_PATH_BYTES];
    int listener;
    /* (n_nodes). On one machine only the first is used, for the node that answers. */
    peer *peers;
    lt_orders orders;
    double heard_s; /* When a line last came from standard input. */
    int ended_by;   /* The signal that ends the agent; below 0: none. */
} agent;

/* ---- Sockets --------------------------------------------------------------------------------- */

static void set_limits(int fd) {
    const struct timeval limit = lt_clock_span(LT_AGENT_SILENT_S);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static bool send_bytes(int fd, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n <= 0 && errno != EINTR) {
            return false;
        }
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool receive_bytes(int fd, void *data, size_t bytes) {
    char *at = data;
    while (bytes > 0) {
        const ssize_t n = recv(fd, at, bytes, 0);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return false;
        }
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* Connect to "10.0.0.2:4711"; -1: no agent answers there. */
static int connect_to(const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    char host[LT_AGENT_ADDRESS], *colon;
    int fd = -1;
    (void)snprintf(host, sizeof host, "%s", address);
    colon = strchr(host, ':');
    if (colon != NULL) {
        *colon = '\0';
        to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
        fd = inet_pton(AF_INET, host, &to.sin_addr) == 1
                 ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)
                 : -1;
    }
    if (fd >= 0) {
        set_limits(fd);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
            (void)close(fd);
            fd = -1;
        }
    }
    return fd;
}

/* Connect to the next node whose agent answers; -1: none does. */
static int connect_to_next(const agent *a) {
    int fd = -1;
    for (int k = 1; fd < 0 && k < a->o->n_nodes; k++) {
        char path[LT_PATH_BYTES], *text = NULL;
        size_t bytes;
        if (snprintf(path, sizeof path, "%s/node-%d/agent", a->o->root,
                     (a->o->node + k) % a->o->n_nodes) < LT_PATH_BYTES &&
            lt_file_read(&text, &bytes, path, LT_AGENT_ADDRESS - 1) == LT_OK) {
            fd = connect_to(text);
        }
        free(text);
    }
    return fd;
}

static json_t *describe_file(const char *name, const lt_file_map *map) {
    char hex[24];
    (void)snprintf(hex, sizeof hex, "%016llx",
                   (unsigned long long)XXH3_64bits(map->data, map->size_bytes));
    return json_pack("{s:s, s:I, s:s}", "name", name, "bytes", (json_int_t)map->size_bytes, "xxh3",
                     hex);
}

/* Send head and files; false: the receiver or the snapshot is gone. */
static bool send_snapshot(const agent *a, int fd, const char *holder, int64_t step,
                          const char *folder) {
    char **names = NULL, path[LT_PATH_BYTES], answer[sizeof CONFIRMED] = "", *text = NULL;
    lt_file_map *maps = NULL;
    json_t *files = json_array(), *head = NULL;
    size_t n = 0, mapped = 0;
    bool ok = lt_file_list(&names, &n, folder) == LT_OK;

    maps = calloc(n + 1, sizeof *maps);
    for (; ok && maps != NULL && mapped < n; mapped++) {
        ok = lt_path_join(path, folder, names[mapped]) == LT_OK &&
             lt_file_map_open(&maps[mapped], path) == LT_OK;
        if (ok) {
            json_array_append_new(files, describe_file(names[mapped], &maps[mapped]));
        }
    }
    head = json_pack("{s:s, s:s, s:I, s:O}", "token", a->o->token, "holder", holder, "step",
                     (json_int_t)step, "files", files);
    text = head != NULL ? json_dumps(head, JSON_COMPACT) : NULL;
    ok = ok && maps != NULL && text != NULL && send_bytes(fd, text, strlen(text)) &&
         send_bytes(fd, "\n", 1);
    for (size_t i = 0; i < mapped; i++) {
        ok = ok && send_bytes(fd, maps[i].data, maps[i].size_bytes);
        lt_file_map_close(&maps[i]);
    }
    ok = ok && receive_bytes(fd, answer, strlen(CONFIRMED)) && strcmp(answer, CONFIRMED) == 0;
    lt_file_list_free(names, n);
    json_decref(files);
    json_decref(head);
    free(maps);
    free(text);
    return ok;
}

/* The step of a name such as "step-000000012"; -1: another name. */
static int64_t step_of(const char *name) {
    char *end;
    const int64_t step = strncmp(name, "step-", 5) == 0 ? strtoll(name + 5, &end, 10) : -1;
    return step >= 0 && *end == '\0' ? step : -1;
}

static void send_new(const agent *a, peer *to, const char *holder, const char *folder,
                     const char *name) {
    char key[LT_PATH_BYTES], path[LT_PATH_BYTES];
    const int64_t step = step_of(name);
    int fd;
    if (step < 0 || lt_path_join(key, holder, name) != LT_OK ||
        lt_path_join(path, folder, name) != LT_OK || json_object_get(to->sent, key) != NULL) {
        return;
    }
    fd = a->o->address != NULL ? connect_to(to->address) : connect_to_next(a);
    if (fd >= 0 && send_snapshot(a, fd, holder, step, path)) {
        json_object_set_new(to->sent, key, json_true());
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* Forget that folders were sent which no longer exist. */
static void forget_gone(const agent *a, peer *to) {
    char path[LT_PATH_BYTES];
    const char *key;
    void *next;
    json_t *value;
    json_object_foreach_safe(to->sent, next, key, value) {
        if (lt_path_join(path, a->own, key) == LT_OK && !lt_file_exists(path)) {
            json_object_del(to->sent, key);
        }
    }
}

static void look(const agent *a, peer *to) {
    char **holders = NULL, **names, folder[LT_PATH_BYTES];
    size_t n = 0, n_names;
    if (lt_file_list(&holders, &n, a->own) != LT_OK) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (lt_path_join(folder, a->own, holders[i]) != LT_OK ||
            lt_file_list(&names, &n_names, folder) != LT_OK) {
            continue;
        }
        for (size_t k = n_names; k > 0; k--) { /* The newest one first. */
            send_new(a, to, holders[i], folder, names[k - 1]);
        }
        lt_file_list_free(names, n_names);
    }
    lt_file_list_free(holders, n);
    forget_gone(a, to);
}

static void look_for_all(const agent *a) {
    const bool machines = a->o->address != NULL;
    for (int k = 0; a->o->n_nodes > 1 && k < (machines ? a->o->n_nodes : 1); k++) {
        if (!machines || a->peers[k].address[0] != '\0') {
            look(a, &a->peers[k]);
        }
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static bool is_plain_name(const char *name) {
    return name != NULL && name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL &&
           strlen(name) < 200;
}

static json_t *receive_head(int fd) {
    char *text = malloc(HEAD_BYTES_MAX);
    json_t *head = NULL;
    size_t n = 0;
    while (text != NULL && n < HEAD_BYTES_MAX && receive_bytes(fd, text + n, 1) &&
           text[n] != '\n') {
        n++;
    }
    if (text != NULL && n < HEAD_BYTES_MAX) {
        head = json_loadb(text, n, 0, NULL);
    }
    free(text);
    return head;
}

static bool receive_file(int fd, const char *folder, const json_t *entry, char *piece) {
    const char *name = json_string_value(json_object_get(entry, "name")),
               *want = json_string_value(json_object_get(entry, "xxh3"));
    json_int_t left = json_integer_value(json_object_get(entry, "bytes"));
    XXH3_state_t *hash = XXH3_createState();
    char path[LT_PATH_BYTES], hex[24] = "";
    bool ok = is_plain_name(name) && want != NULL && hash != NULL && left >= 0 &&
              lt_path_join(path, folder, name) == LT_OK;
    const int out = ok ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    ok = out >= 0 && XXH3_64bits_reset(hash) == XXH_OK;
    while (ok && left > 0) {
        const size_t n = (size_t)left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        ok = receive_bytes(fd, piece, n) && write(out, piece, n) == (ssize_t)n &&
             XXH3_64bits_update(hash, piece, n) == XXH_OK;
        left -= (json_int_t)n;
    }
    if (ok) {
        (void)snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits_digest(hash));
    }
    if (out >= 0) {
        (void)close(out);
    }
    XXH3_freeState(hash);
    return ok && strcmp(hex, want) == 0;
}

/* Remove all but the newest snapshots of a holder. */
static void prune(const char *folder) {
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0, whole = 0;
    if (lt_file_list(&names, &n, folder) != LT_OK) {
        return;
    }
    for (size_t i = n; i > 0; i--) { /* The newest has the last name. */
        whole += step_of(names[i - 1]) >= 0;
        if (whole > LT_MEMORY_KEEP && lt_path_join(path, folder, names[i - 1]) == LT_OK &&
            lt_file_remove_tree(path) != LT_OK) {
            lt_log_warn("%s", lt_error_message());
        }
    }
    lt_file_list_free(names, n);
}

static bool keep(const agent *a, int fd, const json_t *head, char *piece) {
    const char *holder = json_string_value(json_object_get(head, "holder"));
    const json_int_t step = json_integer_value(json_object_get(head, "step"));
    const json_t *files = json_object_get(head, "files");
    char folder[LT_PATH_BYTES], name[64], aside[LT_PATH_BYTES], path[LT_PATH_BYTES];
    bool ok = is_plain_name(holder) && step >= 0 && json_array_size(files) > 0 &&
              lt_path_join(folder, a->kept, holder) == LT_OK;
    (void)snprintf(name, sizeof name, "step-%09lld", (long long)step);
    ok = ok && lt_path_join(path, folder, name) == LT_OK &&
         snprintf(aside, sizeof aside, "%s.tmp", path) < (int)sizeof aside &&
         lt_file_remove_tree(aside) == LT_OK && lt_file_make_dirs(aside) == LT_OK;
    for (size_t i = 0; ok && i < json_array_size(files); i++) {
        ok = receive_file(fd, aside, json_array_get(files, i), piece);
    }
    ok = ok && lt_file_remove_tree(path) == LT_OK && rename(aside, path) == 0;
    if (ok) {
        prune(folder);
    }
    return ok;
}

static bool is_token(const agent *a, const json_t *head) {
    const char *given = json_string_value(json_object_get(head, "token"));
    return given != NULL && lt_comm_store_is_token(a->o->token, given);
}

static void *receive(void *of) {
    const agent *a = of;
    char *piece = malloc(PIECE_BYTES);
    for (;;) {
        const int fd = accept4(a->listener, NULL, NULL, SOCK_CLOEXEC);
        json_t *head;
        if (fd < 0 || piece == NULL) {
            break;
        }
        set_limits(fd);
        head = receive_head(fd);
        if (head != NULL && is_token(a, head) && keep(a, fd, head, piece)) {
            (void)send_bytes(fd, CONFIRMED, strlen(CONFIRMED));
        }
        json_decref(head);
        (void)close(fd);
    }
    free(piece);
    return NULL;
}

/* ---- Storyboard ------------------------------------------------------------------------------ */

static lt_err paths(agent *a) {
    const lt_agent_options *o = a->o;
    if (snprintf(a->own, sizeof a->own, "%s/node-%d/own", o->root, o->node) >= LT_PATH_BYTES ||
        snprintf(a->kept, sizeof a->kept, "%s/node-%d/kept", o->root, o->node) >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", o->root);
    }
    LT_TRY(lt_file_make_dirs(a->own)); /* The memory of the node may have been lost. */
    return lt_file_make_dirs(a->kept);
}

/* Listen at any free port, and announce it in ROOT/node-K/agent or on standard output. */
static lt_err listen_for_others(agent *a) {
    const char *host = a->o->address != NULL ? a->o->address : "127.0.0.1";
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;
    char path[LT_PATH_BYTES], text[64];
    a->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (a->listener < 0 || inet_pton(AF_INET, host, &at.sin_addr) != 1 ||
        bind(a->listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(a->listener, 16) != 0 ||
        getsockname(a->listener, (struct sockaddr *)&at, &bytes) != 0) {
        LT_FAIL(LT_ERR_IO, "agent of node %d at %s: %s", a->o->node, host, strerror(errno));
    }
    (void)snprintf(text, sizeof text, "%s:%u\n", host, (unsigned)ntohs(at.sin_port));
    if (a->o->address != NULL) {
        (void)printf("listens %s", text);
        (void)fflush(stdout);
        return LT_OK;
    }
    (void)snprintf(path, sizeof path, "%s/node-%d/agent", a->o->root, a->o->node);
    return lt_file_write_atomic(path, text, strlen(text));
}

/* Obey a line of the launcher. False: the agent must end. */
static bool obey(agent *a, const char *line) {
    char address[LT_AGENT_ADDRESS] = "";
    int node = -1, number = 0;
    if (sscanf(line, "peer %d %31s", &node, address) == 2 && node >= 0 && node < a->o->n_nodes &&
        node != a->o->node) {
        peer *p = &a->peers[node];
        if (strcmp(p->address, address) != 0) { /* A new agent has no snapshots yet. */
            json_object_clear(p->sent);
        }
        (void)snprintf(p->address, sizeof p->address, "%s", address[0] == '-' ? "" : address);
    }
    return sscanf(line, "signal %d", &number) != 1 || (number != SIGTERM && number != SIGINT);
}

/* Obey the launcher's lines until it is time to look for new snapshots again. False: the agent must
 * end. */
static bool wait_for_orders(agent *a) {
    double wait_s = LT_AGENT_LOOK_S;
    const char *line;
    bool go = true;
    while ((line = lt_orders_next(&a->orders, STDIN_FILENO, wait_s)) != NULL) {
        a->heard_s = lt_clock_s();
        go = obey(a, line) && go;
        wait_s = 0.0;
    }
    return go && !a->orders.ended && lt_clock_s() < a->heard_s + LT_AGENT_ALONE_S;
}

static bool is_asked_to_end(agent *a, const sigset_t *ends) {
    const struct timespec pause = {.tv_nsec = (long)(LT_AGENT_LOOK_S * 1e9)}, none = {0};
    if (a->o->address != NULL && !wait_for_orders(a)) {
        return true;
    }
    a->ended_by = sigtimedwait(ends, NULL, a->o->address != NULL ? &none : &pause);
    return a->ended_by >= 0;
}

static lt_err make_peers(agent *a) {
    a->peers = calloc((size_t)a->o->n_nodes, sizeof *a->peers);
    if (a->peers == NULL) {
        LT_FAIL(LT_ERR_OOM, "agent of node %d", a->o->node);
    }
    for (int k = 0; k < a->o->n_nodes; k++) {
        a->peers[k].sent = json_object();
    }
    return LT_OK;
}

static void close_agent(agent *a, pthread_t *thread) {
    if (a->listener >= 0) {
        (void)shutdown(a->listener, SHUT_RDWR); /* This makes accept4 return. */
    }
    if (thread != NULL) {
        (void)pthread_join(*thread, NULL);
    }
    if (a->listener >= 0) {
        (void)close(a->listener);
    }
    for (int k = 0; a->peers != NULL && k < a->o->n_nodes; k++) {
        json_decref(a->peers[k].sent);
    }
    free(a->peers);
}

lt_err lt_agent_run(const lt_agent_options *o) {
    lt_err err = LT_OK;
    agent a = {.o = o, .listener = -1, .heard_s = lt_clock_s()};
    pthread_t thread;
    bool runs = false;
    sigset_t ends;

    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, LT_AGENT_ORPHANED);
    (void)pthread_sigmask(SIG_BLOCK, &ends, NULL);
    LT_TRY_DONE(make_peers(&a));
    LT_TRY_DONE(paths(&a));
    LT_TRY_DONE(listen_for_others(&a));
    runs = pthread_create(&thread, NULL, receive, &a) == 0;
    if (!runs) {
        LT_FAIL_DONE(LT_ERR_OOM, "agent of node %d", o->node);
    }
    while (!is_asked_to_end(&a, &ends)) {
        look_for_all(&a);
    }
done:
    close_agent(&a, runs ? &thread : NULL);
    if (a.ended_by == LT_AGENT_ORPHANED) {
        /* The ranks were killed with the launcher, so the memory is no longer needed. Other agents
         * may remove it at the same time. */
        (void)!lt_file_remove_tree(o->root);
    }
    return err;
}

/* ---- On a separate machine ------------------------------------------------------------------- */

/* The address from which packets to `to` leave. */
static lt_err find_address(char out[LT_AGENT_ADDRESS], const char *to) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(9)};
    socklen_t bytes = sizeof a;
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool found = fd >= 0 && inet_pton(AF_INET, to, &a.sin_addr) == 1 &&
                       connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
                       getsockname(fd, (struct sockaddr *)&a, &bytes) == 0 &&
                       inet_ntop(AF_INET, &a.sin_addr, out, LT_AGENT_ADDRESS) != NULL;
    if (fd >= 0) {
        (void)close(fd);
    }
    return found ? LT_OK : lt_error_set(LT_ERR_REMOTE, "agent: no route to the launcher's %s", to);
}

/* Remove the memory if this process has made it, even if agents of other machines use the same
 * folder. */
static void remove_memory(const lt_agent_options *o, bool owner) {
    char path[LT_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/node-%d", o->root, o->node) < LT_PATH_BYTES) {
        (void)!lt_file_remove_tree(owner ? o->root : path);
    }
}

lt_err lt_agent_run_machine(void) {
    lt_err err = LT_OK;
    lt_agent_options o;
    const char *version, *program, *launcher;
    char *text = NULL, address[LT_AGENT_ADDRESS];
    json_t *j = NULL;
    bool owner = false, joined = false;
    int keeps;

    (void)signal(SIGPIPE, SIG_IGN);
    LT_TRY_DONE(lt_remote_first_line(&text));
    j = json_loads(text, 0, NULL);
    if (j == NULL ||
        json_unpack(j, "{s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:b}", "version", &version, "program",
                    &program, "memory", &o.root, "node", &o.node, "nodes", &o.n_nodes, "token",
                    &o.token, "launcher", &launcher, "keep", &keeps) != 0 ||
        o.n_nodes < 1 || o.node < 0 || o.node >= o.n_nodes) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "agent: standard input describes no machine");
    }
    LT_TRY_DONE(lt_remote_check_build(version, program));
    LT_TRY_DONE(find_address(address, launcher));
    o.address = address;
    LT_TRY_DONE(lt_memory_join(o.root, &owner));
    joined = true;
    if (!keeps) {
        remove_memory(&o, false);
    }
    LT_TRY_DONE(lt_agent_run(&o));
done:
    if (joined) {
        remove_memory(&o, owner);
    }
    json_decref(j);
    free(text);
    return err;
}
