/* What a run publishes while it trains: its numbers for Prometheus, its report on a page, and event
 * files for TensorBoard, which are read here by a decoder of TFRecords and protocol buffers. */
#include "unit/platform/http_get.h"
#include "unit/train/run_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>

#include "base/clock.h"
#include "train/report/live.h"
#include "train/report/report.h"
#include "train/report/report_page.h"
#include "train/report/tensorboard.h"

static const lt_metric table[] = {{"step", LT_METRIC_COUNT, "", "step"},
                                  {"step_s", LT_METRIC_GAUGE, "s", "time of a step"},
                                  {"tokens_per_s", LT_METRIC_GAUGE, "", "rate"},
                                  {"energy_j", LT_METRIC_TOTAL, "J", "energy"},
                                  {"a-b.c/d", LT_METRIC_GAUGE, "", "marks"},
                                  {"_s", LT_METRIC_GAUGE, "", "an ending alone"},
                                  {"absent", LT_METRIC_GAUGE, "", "none"}};
enum { N = sizeof table / sizeof *table };

/* ---- Prometheus ---- */

static bool is_time(const char *line) {
    return strstr(line, "timestamp") != NULL || strstr(line, "interval") != NULL;
}

/* All lines of the answer that begin with "lateen_", values of clocks left out, and the lines about
 * them that begin with `about`. */
static void lines_of(const lt_live *l, const char *about, char *out, size_t room) {
    static char reply[1 << 16];
    char *next = NULL;
    http_get(lt_live_address(l), "/metrics", reply, sizeof reply);
    assert_non_null(strstr(reply, " 200 "));
    out[0] = '\0';
    for (char *line = strtok_r(reply, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        const bool wanted = about != NULL ? strncmp(line, about, strlen(about)) == 0
                                          : strncmp(line, "lateen_", 7) == 0;
        if (wanted) {
            const size_t used = strlen(out);
            const int n = about == NULL && is_time(line) ? (int)(strchr(line, ' ') - line)
                                                         : (int)strlen(line);
            (void)snprintf(out + used, room - used, "%.*s\n", n, line);
        }
    }
}

static double value_of(const lt_live *l, const char *name) {
    char reply[1 << 14], start[128];
    const char *at;
    http_get(lt_live_address(l), "/metrics", reply, sizeof reply);
    (void)snprintf(start, sizeof start, "\n%s{run=\"red\"} ", name);
    at = strstr(reply, start);
    assert_non_null(at);
    return atof(at + strlen(start));
}

#define NAMED(name, value) "lateen_train_" name "{run=\"red\"} " value "\n"
#define OF_TIME(name)      "lateen_train_" name "{run=\"red\"}\n"
#define SPENT(kind, value) "lateen_train_seconds_total{run=\"red\",kind=\"" kind "\"} " value "\n"

static void prometheus_reads_a_run(void **state) {
    static const double first[N] = {7, 0.5, 800, 12, 3, 4, 1}, second[N] = {8, 0.25};
    static const bool present[N] = {true, true, true, true, true, true, false},
                      fewer[N] = {true, true};
    static char all[1 << 15], want[1 << 15];
    const double before = lt_clock_unix_s();
    lt_goodput spent = {.s = {0}};
    lt_live *l = NULL;
    (void)state;
    for (int i = 0; i < LT_GOODPUT_COUNT; i++) {
        spent.s[i] = i + 0.5;
    }
    must(lt_live_open(&l, "127.0.0.1:0", "/runs/red", "qwen3", 90), "open");
    assert_true(value_of(l, "lateen_train_checkpoint_step") == -1.0);
    assert_true(value_of(l, "lateen_train_mirror_step") == -1.0);
    assert_true(value_of(l, "lateen_train_last_step_timestamp_seconds") >= before - 1e-3);
    assert_true(value_of(l, "lateen_train_checkpoint_timestamp_seconds") >= before - 1e-3);
    lt_live_step(l, 6, true, &spent);
    lt_live_step(l, 7, false, &spent);
    lt_live_step(l, 8, true, &spent);
    lt_live_saved(l, 5);
    assert_true(value_of(l, "lateen_train_checkpoint_interval_seconds") == 0.0);
    lt_live_saved(l, 8);
    const double interval = value_of(l, "lateen_train_checkpoint_interval_seconds");
    assert_true(interval > 0.0 && interval < 60.0);
    lt_live_mirrored(l, 4, 2);
    must(lt_live_row(l, "train", table, N, first, present), "row");
    must(lt_live_row(l, "eval", table, N, second, fewer), "row");
    must(lt_live_row(l, "train", table, N, second, fewer), "row");
    must(lt_live_row(l, "rl", table, N, first, present), "row");
    lines_of(l, NULL, all, sizeof all);
    (void)snprintf(want, sizeof want,
                   "lateen_train_info{run=\"red\",attempt=\"0\",epoch=\"0\",version=\"%s\","
                   "model=\"qwen3\"} 1\n%s",
                   lt_version(),
                   NAMED("steps_total", "3") NAMED("skipped_updates_total", "1")
                       NAMED("checkpoints_total", "2") NAMED("target_step", "90")
                           NAMED("current_step", "8") OF_TIME("last_step_timestamp_seconds")
                               NAMED("checkpoint_step", "8") OF_TIME("checkpoint_timestamp_seconds")
                                   OF_TIME("checkpoint_interval_seconds") NAMED("mirror_step", "4")
                                       NAMED("mirror_failures_total", "2"));
    for (int i = 0; i < LT_GOODPUT_COUNT; i++) {
        const size_t used = strlen(want);
        (void)snprintf(want + used, sizeof want - used, SPENT("%s", "%g"), lt_goodput_names[i],
                       i + 0.5);
    }
    strcat(
        want,
        NAMED("step", "8") NAMED(
            "step_seconds",
            "0.25") "lateen_eval_step{run=\"red\"} 8\nlateen_eval_step_seconds{run=\"red\"} 0.25\n"
                    "lateen_rl_step{run=\"red\"} 7\nlateen_rl_step_seconds{run=\"red\"} 0.5\n"
                    "lateen_rl_tokens_per_second{run=\"red\"} 800\n"
                    "lateen_rl_energy_joules_total{run=\"red\"} 12\n"
                    "lateen_rl_a_b_c_d{run=\"red\"} 3\nlateen_rl__s{run=\"red\"} 4\n");
    assert_string_equal(all, want);
    lines_of(l, "# TYPE lateen_rl_", all, sizeof all);
    assert_string_equal(all, "# TYPE lateen_rl_step gauge\n# TYPE lateen_rl_step_seconds gauge\n"
                             "# TYPE lateen_rl_tokens_per_second gauge\n"
                             "# TYPE lateen_rl_energy_joules_total counter\n"
                             "# TYPE lateen_rl_a_b_c_d gauge\n# TYPE lateen_rl__s gauge\n");
    lines_of(l, "# HELP lateen_rl_step", all, sizeof all);
    assert_string_equal(all, "# HELP lateen_rl_step step\n"
                             "# HELP lateen_rl_step_seconds time of a step, s\n");
    spent.s[0] = 99.0;
    lt_live_goodput(l, &spent);
    lines_of(l, "lateen_train_seconds_total", all, sizeof all);
    (void)snprintf(want, sizeof want, SPENT("%s", "99"), lt_goodput_names[0]);
    assert_true(strncmp(all, want, strlen(want)) == 0);
    /* Two more tables than there is room for. */
    for (int i = 0; i < 5; i++) {
        char kind[8];
        (void)snprintf(kind, sizeof kind, "more%d", i);
        must(lt_live_row(l, kind, table, N, first, present), kind);
    }
    lines_of(l, "lateen_more", all, sizeof all);
    assert_non_null(strstr(all, "lateen_more2_step{"));
    assert_null(strstr(all, "lateen_more3_step{"));
    lt_live_close(l);
    /* A run that publishes nothing. */
    lt_live_step(NULL, 1, true, &spent);
    lt_live_goodput(NULL, &spent);
    lt_live_saved(NULL, 1);
    lt_live_mirrored(NULL, 1, 0);
    lt_live_close(NULL);
}

static void an_address_that_is_in_use(void **state) {
    lt_live *l = NULL, *other = NULL;
    char at[64];
    (void)state;
    must(lt_live_open(&l, "127.0.0.1:0", "/runs/red", "qwen3", 9), "open");
    (void)snprintf(at, sizeof at, "127.0.0.1%s", strrchr(lt_live_address(l), ':'));
    assert_int_not_equal(lt_live_open(&other, at, "/runs/blue", "qwen3", 9), LT_OK);
    assert_null(other);
    lt_live_close(l);
}

/* ---- The page ---- */

static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void a_page_shows_the_report(void **state) {
    static const char *const pages[] = {"/", "/report.html"};
    const size_t page_bytes = strlen(lt_report_page), room = page_bytes + 4096;
    char *reply = malloc(room), address[32], folder[LT_PATH_BYTES];
    const int port = free_port();
    lt_page *p = NULL, *second = NULL;
    json_t *data;
    (void)state;
    assert_non_null(reply);
    must(run_train("shown", "steps=2", NULL), "shown");
    run_path(folder, "shown");
    must(lt_page_open(&p, folder, port), "page");
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", port);
    for (int i = 0; i < 2; i++) {
        http_get(address, pages[i], reply, room);
        assert_non_null(strstr(reply, "text/html; charset=utf-8"));
        assert_string_equal(strstr(reply, "\r\n\r\n") + 4, lt_report_page);
    }
    http_get(address, "/data.json", reply, room);
    assert_non_null(strstr(reply, "application/json"));
    data = json_loads(strstr(reply, "\r\n\r\n") + 4, 0, NULL);
    assert_non_null(data);
    assert_non_null(strstr(reply, "\"kind\""));
    json_decref(data);
    http_get(address, "/none", reply, room);
    assert_non_null(strstr(reply, " 404 "));
    assert_int_not_equal(lt_page_open(&second, folder, port), LT_OK);
    lt_page_close(p);
    lt_page_close(NULL);
    free(reply);
}

/* ---- TensorBoard ---- */

/* CRC-32C bit by bit, as RFC 3720 defines it. */
static uint32_t crc32c(const unsigned char *data, size_t n) {
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        c ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            c = (c >> 1) ^ ((c & 1) != 0 ? 0x82f63b78u : 0);
        }
    }
    return ~c;
}

static uint32_t masked(const unsigned char *data, size_t n) {
    const uint32_t c = crc32c(data, n);
    return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

/* Print a message by field numbers: "2=9 5={1={1='train/loss' 2=0.5f}}". kinds: which fields
 * with bytes are messages; TEXT: 'T', MESSAGE: 'M', by the path of numbers. */
static void print_fields(char *out, size_t room, const unsigned char *at, size_t n,
                         const char *path) {
    const unsigned char *end = at + n;
    while (at < end) {
        const size_t used = strlen(out);
        const int field = *at >> 3, kind = *at & 7;
        char here[32];
        uint64_t number = 0;
        at++;
        (void)snprintf(here, sizeof here, "%s.%d", path, field);
        if (kind == 0 || kind == 2) {
            int shift = 0;
            do {
                number |= (uint64_t)(*at & 127) << shift;
                shift += 7;
            } while ((*at++ & 128) != 0);
        }
        if (kind == 0) {
            (void)snprintf(out + used, room - used, "%d=%llu ", field, (unsigned long long)number);
        } else if (kind == 1) {
            double x;
            memcpy(&x, at, 8);
            assert_true(field == 1 && fabs(x - lt_clock_unix_s()) < 600.0); /* The time. */
            at += 8;
        } else if (kind == 5) {
            float x;
            memcpy(&x, at, 4);
            (void)snprintf(out + used, room - used, "%d=%gf ", field, (double)x);
            at += 4;
        } else if (strcmp(here, ".3") == 0 || strcmp(here, ".5.1.1") == 0) {
            (void)snprintf(out + used, room - used, "%d='%.*s' ", field, (int)number, at);
            at += number;
        } else {
            (void)snprintf(out + used, room - used, "%d={", field);
            print_fields(out, room, at, number, here);
            strcat(out, "}");
            at += number;
        }
    }
    assert_ptr_equal(at, end);
}

/* Print all records of the only event file in a folder. */
static void print_events(const char *path, char *out, size_t room) {
    DIR *d = opendir(path);
    char file[LT_PATH_BYTES] = "", *data = NULL;
    size_t bytes = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.') {
            assert_true(strncmp(e->d_name, "events.out.tfevents.", 20) == 0);
            assert_string_equal(file, "");
            must(lt_path_join(file, path, e->d_name), path);
        }
    }
    closedir(d);
    must(lt_file_read(&data, &bytes, file, 1 << 20), file);
    out[0] = '\0';
    for (size_t at = 0; at < bytes;) {
        const unsigned char *r = (const unsigned char *)data + at;
        uint64_t n;
        uint32_t check;
        memcpy(&n, r, 8);
        memcpy(&check, r + 8, 4);
        assert_int_equal(check, masked(r, 8));
        assert_true(at + 16 + n <= bytes);
        memcpy(&check, r + 12 + n, 4);
        assert_int_equal(check, masked(r + 12, n));
        print_fields(out, room, r + 12, n, "");
        strcat(out, "\n");
        at += 16 + n;
    }
    free(data);
}

static void tensorboard_reads_a_run(void **state) {
    static const double first[N] = {300, 0.5, 800, 12, 3, 4, 1};
    static const bool present[N] = {true, true, true, true, false, false, false};
    char folder[LT_PATH_BYTES], text[2048];
    lt_tensorboard *b = NULL;
    (void)state;
    assert_int_equal(crc32c((const unsigned char *)"123456789", 9), 0xe3069283u);
    run_path(folder, "events");
    must(lt_file_make_dirs(folder), folder);
    must(lt_tensorboard_open(&b, folder, 127), "open");
    must(lt_tensorboard_row(b, "train", table, N, first, present), "row");
    /* What is written is in the file at once. */
    print_events(folder, text, sizeof text);
    assert_string_equal(text, "3='brain.Event:2' \n2=128 7={1=1 }\n"
                              "2=300 5={1={1='train/step_s' 2=0.5f }1={1='train/tokens_per_s' "
                              "2=800f }1={1='train/energy_j' 2=12f }}\n");
    lt_tensorboard_close(b);
    lt_tensorboard_close(NULL);
    run_path(folder, "no-such-folder");
    assert_int_equal(lt_tensorboard_open(&b, folder, 0), LT_ERR_IO);
    says("no-such-folder/events.out.tfevents.");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prometheus_reads_a_run), cmocka_unit_test(an_address_that_is_in_use),
        cmocka_unit_test(a_page_shows_the_report), cmocka_unit_test(tensorboard_reads_a_run)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
