/* `lateen doctor` beside what Linux says of this machine: /proc/cpuinfo, /proc/meminfo, the
 * affinity mask and the caches in /sys; and its text beside its own JSON. */
#include "unit/cli/verb_run.h"

#include <sched.h>

int lt_verb_doctor(int argc, char **argv);

/* The value behind "KEY :" on the first line that begins with KEY; false: there is no such line. */
static bool proc_value(const char *path, const char *key, char *out, size_t room) {
    char *line = NULL;
    size_t line_room = 0;
    bool found = false;
    FILE *f = fopen(path, "r");
    while (f != NULL && !found && getline(&line, &line_room, f) > 0) {
        const char *colon = strchr(line, ':');
        if (colon != NULL && strncmp(line, key, strlen(key)) == 0) {
            colon += strspn(colon, ": \t");
            (void)snprintf(out, room, "%.*s", (int)strcspn(colon, "\n"), colon);
            found = true;
        }
    }
    free(line);
    if (f != NULL) {
        (void)fclose(f);
    }
    return found;
}

static const json_t *member(const json_t *o, const char *a, const char *b) {
    const json_t *found = json_object_get(json_object_get(o, a), b);
    assert_non_null(found);
    return found;
}

static void the_processor(void **state) {
    static const char *const known[] = {"avx2",        "fma",         "f16c",     "avx512f",
                                        "avx512bw",    "avx512dq",    "avx512vl", "avx512_bf16",
                                        "avx512_vnni", "avx512_fp16", "avx_vnni", "amx_tile",
                                        "amx_bf16",    "amx_int8"};
    char model[128], flags[8192], word[40];
    cpu_set_t allowed;
    json_t *r = run_json(lt_verb_doctor, "doctor --no-measure --json");
    const json_t *names = member(r, "cpu", "instructions");
    (void)state;
    if (!proc_value("/proc/cpuinfo", "model name", model, sizeof model) ||
        !proc_value("/proc/cpuinfo", "flags", flags, sizeof flags)) {
        json_decref(r);
        skip();
    }
    assert_int_equal(strncmp(json_string_value(member(r, "cpu", "model")), model, 47), 0);
    strcat(flags, " ");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool told = false;
        (void)snprintf(word, sizeof word, " %s ", known[i]);
        for (size_t k = 0; k < json_array_size(names); k++) {
            told = told || strcmp(json_string_value(json_array_get(names, k)), known[i]) == 0;
        }
        if (told != (strstr(flags, word) != NULL)) {
            fail_msg("%s: doctor says %d, /proc/cpuinfo %d", known[i], told, !told);
        }
    }
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    if (strcmp(json_string_value(member(r, "cpu", "allowed_by")), "the affinity mask") == 0) {
        assert_int_equal(json_integer_value(member(r, "cpu", "allowed")), CPU_COUNT(&allowed));
    }
    assert_in_range(json_integer_value(member(r, "cpu", "allowed")), 1, CPU_COUNT(&allowed));
    assert_true(json_integer_value(member(r, "cpu", "cores")) <=
                json_integer_value(member(r, "cpu", "hardware_threads")));
    assert_null(json_object_get(r, "measured"));
    assert_null(json_object_get(r, "ops"));
    json_decref(r);
}

static void the_memory(void **state) {
    char text[64];
    json_t *r = run_json(lt_verb_doctor, "doctor --no-measure --json");
    const json_t *caches = json_object_get(r, "caches");
    (void)state;
    assert_true(proc_value("/proc/meminfo", "MemTotal", text, sizeof text));
    if (strcmp(json_string_value(member(r, "memory", "bytes_by")), "the machine's memory") == 0) {
        assert_int_equal(json_integer_value(member(r, "memory", "bytes")),
                         strtoll(text, NULL, 10) * 1024);
    }
    assert_true(json_integer_value(member(r, "memory", "available_bytes")) <=
                json_integer_value(member(r, "memory", "bytes")));
    if (strcmp(json_string_value(member(r, "memory", "available_by")), "MemAvailable") == 0 &&
        proc_value("/proc/meminfo", "MemAvailable", text, sizeof text)) { /* It changes. */
        const double now = (double)strtoll(text, NULL, 10) * 1024.0,
                     told = json_number_value(member(r, "memory", "available_bytes"));
        assert_true(told > 0.5 * now && told < 2.0 * now);
    }
    for (size_t i = 0; i < json_array_size(caches); i++) { /* Each size is one that Linux names. */
        const json_t *c = json_array_get(caches, i);
        bool found = false, any = false;
        for (int k = 0; k < 8; k++) {
            char path[96], level[16] = "", size[16] = "";
            FILE *f;
            (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level",
                           k);
            if ((f = fopen(path, "r")) == NULL) {
                continue;
            }
            any = fgets(level, sizeof level, f) != NULL;
            (void)fclose(f);
            (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", k);
            if ((f = fopen(path, "r")) == NULL) {
                continue;
            }
            any = fgets(size, sizeof size, f) != NULL && any;
            (void)fclose(f);
            found = found || (atoll(level) == number_at(c, "level") &&
                              atoll(size) * 1024 == number_at(c, "bytes"));
        }
        assert_true(found || !any);
    }
    json_decref(r);
}

static void contains(const char *text, const char *want) {
    if (strstr(text, want) == NULL) {
        fail_msg("no '%s' in:\n%s", want, text);
    }
}

/* In units of 1,024: KiB below 1 MiB, MiB below 1 GiB. */
static void bytes_text(char *to, size_t room, double bytes) {
    if (bytes < 1024.0 * 1024.0) {
        (void)snprintf(to, room, "%.3g KiB", bytes / 1024.0);
    } else if (bytes < 1024.0 * 1024.0 * 1024.0) {
        (void)snprintf(to, room, "%.3g MiB", bytes / (1024.0 * 1024.0));
    } else {
        (void)snprintf(to, room, "%.1f GiB", bytes / (1024.0 * 1024.0 * 1024.0));
    }
}

static void the_text_says_the_same(void **state) {
    char want[512], size[32];
    json_t *r = run_json(lt_verb_doctor, "doctor --no-measure --json");
    ran text = run_verb(lt_verb_doctor, "doctor --no-measure");
    const json_t *cpu = json_object_get(r, "cpu"), *caches = json_object_get(r, "caches"),
                 *names = json_object_get(cpu, "instructions");
    const int cores = (int)number_at(cpu, "cores"), threads = (int)number_at(cpu, "threads_used"),
              pus = (int)number_at(cpu, "hardware_threads");
    const char *name;
    json_t *version;
    (void)state;
    assert_int_equal(text.status, LT_EXIT_DONE);
    (void)snprintf(want, sizeof want, " %d core%s, %d hardware thread%s, ", cores,
                   cores == 1 ? "" : "s", pus, pus == 1 ? "" : "s");
    contains(text.out, want);
    (void)snprintf(want, sizeof want, "; %d thread%s used\n", threads, threads == 1 ? "" : "s");
    contains(text.out, want);
    for (size_t i = 0; i < json_array_size(caches); i++) {
        const json_t *c = json_array_get(caches, i);
        const int count = (int)number_at(c, "count");
        char times[16] = "";
        bytes_text(size, sizeof size, number_at(c, "bytes"));
        if (count > 1) {
            (void)snprintf(times, sizeof times, "%d x ", count);
        }
        (void)snprintf(want, sizeof want, "%sL%d %s%s", i > 0 ? ", " : "caches        ",
                       (int)number_at(c, "level"), times, size);
        contains(text.out, want);
    }
    bytes_text(size, sizeof size, number_at(json_object_get(r, "memory"), "bytes"));
    (void)snprintf(want, sizeof want, "\nmemory        %s (%s), ", size,
                   json_string_value(member(r, "memory", "bytes_by")));
    contains(text.out, want);
    (void)snprintf(want, sizeof want, "\ninstructions  ");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const size_t used = strlen(want);
        (void)snprintf(want + used, sizeof want - used, "%s%s", i > 0 ? " " : "",
                       json_string_value(json_array_get(names, i)));
    }
    contains(text.out, json_array_size(names) > 0 ? want : "none beyond the base\n");
    contains(text.out, "\nlibraries     oneDNN ");
    json_object_foreach(json_object_get(r, "libraries"), name, version) {
        (void)snprintf(want, sizeof want, "%s %s", name, json_string_value(version));
        contains(text.out, want);
    }
    ran_close(&text);
    json_decref(r);
}

static void one_op(void **state) {
    json_t *r = run_json(lt_verb_doctor, "doctor --ops --op rmsnorm_fwd --json");
    const json_t *ops = json_object_get(r, "ops");
    int dtypes = 0;
    ran text = run_verb(lt_verb_doctor, "doctor --ops --op rmsnorm_fwd");
    (void)state;
    assert_null(json_object_get(r, "measured"));
    assert_true(json_array_size(ops) >= 2); /* At least one shape, in F32 and in BF16. */
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *row = json_array_get(ops, i);
        assert_string_equal(json_string_value(json_object_get(row, "op")), "rmsnorm_fwd");
        assert_string_not_equal(json_string_value(json_object_get(row, "choice")), "none");
        dtypes |= strcmp(json_string_value(json_object_get(row, "dtype")), "BF16") == 0 ? 2 : 1;
        contains(text.out, json_string_value(json_object_get(row, "shape")));
    }
    assert_int_equal(dtypes, 3);
    contains(text.out, "\nrmsnorm_fwd\n"); /* A title, once. */
    assert_null(strstr(strstr(text.out, "\nrmsnorm_fwd\n") + 1, "\nrmsnorm_fwd\n"));
    ran_close(&text);
    json_decref(r);
    run_refused(lt_verb_doctor, "doctor --ops --op rmsnorm", LT_EXIT_USAGE, "rmsnorm");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_processor),
        cmocka_unit_test(the_memory),
        cmocka_unit_test(the_text_says_the_same),
        cmocka_unit_test(one_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
