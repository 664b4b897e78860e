/* Verbs of the platform in this process: copies of local folders, of which the sizes and times are
 * known; the table of a cluster's policy, whose numbers follow from the rules in policy.h; the
 * batch script of a job; and programs in the sandbox. sbatch is a script of this test. */
#include "unit/cli/verb_run.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/platform/copying.h"
#include "unit/scratch_folder.h"

int lt_verb_cluster(int argc, char **argv);
int lt_verb_copy(int argc, char **argv);
int lt_verb_sandbox(int argc, char **argv);
int lt_verb_submit(int argc, char **argv);

#define WORDS_BYTES 2048

static const char *in_folder(const char *name) {
    static char paths[4][LT_PATH_BYTES];
    static int next;
    char *path = paths[next = (next + 1) % 4];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    return path;
}

/* A file that was changed at 2021-02-03 04:05:06 UTC, 1,612,325,106 s after 1970. */
static void put(const char *name, const char *text, size_t bytes) {
    const struct timespec at[2] = {{.tv_sec = 1612325106}, {.tv_sec = 1612325106}};
    assert_int_equal(lt_file_write_atomic(in_folder(name), text, bytes), LT_OK);
    assert_int_equal(utimensat(AT_FDCWD, in_folder(name), at, 0), 0);
}

static bool holds(const char *name, const char *text, size_t bytes) {
    char *is = NULL;
    size_t n = 0;
    const bool same = lt_file_read(&is, &n, in_folder(name), 1 << 20) == LT_OK && n == bytes &&
                      memcmp(is, text, n) == 0;
    free(is);
    return same;
}

/* ---- Copies ---- */

/* Every %s of the form stands for the scratch folder; there are at most three. */
static ran copy(const char *form) {
    char words[WORDS_BYTES], all[WORDS_BYTES];
    (void)snprintf(all, sizeof all, "copy %s", form);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(words, sizeof words, all, folder, folder, folder);
#pragma GCC diagnostic pop
    return run_verb(lt_verb_copy, words);
}

static void copies(const char *form, const char *says) {
    ran r = copy(form);
    if (r.status != LT_EXIT_DONE || strstr(r.err, says) == NULL) {
        fail_msg("copy %s: status %d, without '%s': %s", form, r.status, says, r.err);
    }
    ran_close(&r);
}

static void refuses_copy(const char *form, int status, const char *why) {
    ran r = copy(form);
    if (r.status != status || strstr(r.err, why) == NULL) {
        fail_msg("copy %s: status %d, not %d with '%s': %s", form, r.status, status, why, r.err);
    }
    ran_close(&r);
}

static char large[60000];

static void make_source(void) {
    memset(large, 'z', sizeof large);
    assert_int_equal(lt_file_make_dirs(in_folder("src/sub")), LT_OK);
    put("src/a.json", "abc", 3);
    put("src/b.txt", "x", 1);
    put("src/sub/c.bin", large, sizeof large);
}

static void copies_are_whole_and_told(void **state) {
    (void)state;
    make_source();
    copies("%s/src %s/all", ": 3 files, 0.1 MB; 0.1 MB moved in ");
    assert_true(holds("all/a.json", "abc", 3) && holds("all/b.txt", "x", 1));
    assert_true(holds("all/sub/c.bin", large, sizeof large));
    copies("%s/src %s/all", "/src is there already (3 files, 0.1 MB)");
    copies("%s/src %s/all --force", ": 3 files, 0.1 MB; 0.1 MB moved in ");
    copies("%s/src %s/some --include *.json,*.txt", ": 2 files, 4 bytes; 4 bytes moved in ");
    assert_true(holds("some/a.json", "abc", 3) && !lt_file_exists(in_folder("some/sub/c.bin")));
    copies("%s/src %s/rest --exclude *.json,*.bin", ": 1 file, 1 byte; 1 byte moved in ");
    assert_true(holds("rest/b.txt", "x", 1) && !lt_file_exists(in_folder("rest/a.json")));
    put("edge", large, 50001);
    copies("%s/edge %s/edge2", ": 1 file, 0.1 MB; 0.1 MB moved in ");
    put("edge", large, 50000); /* Half of what a digit stands for, which is not shown as 0.0. */
    copies("%s/edge %s/edge3", ": 1 file, 50000 bytes; 50000 bytes moved in ");
    copies("%s/src/b.txt %s/one", ": 1 file, 1 byte; 1 byte moved in ");
    copies("%s/src/b.txt %s/one", "/b.txt is there already (1 file, 1 byte)");
    copies("%s/src/sub/c.bin %s/limited --part-bytes 4096 --connections 2", ": 1 file, 0.1 MB; ");
    assert_true(holds("limited", large, sizeof large));
}

/* Paths of this machine stay as they are, with their weights. */
static void mixtures_of_local_shards(void **state) {
    static const char *const texts[] = {"/x/a",    "/x/a:0.3,/y/b", "/x/a:1e-2,/y/b:2",
                                        "a/b:c,d", "a,b",           "a,b"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char value[LT_OPTION_STR_BYTES];
        (void)snprintf(value, sizeof value, "%s", texts[i]);
        assert_int_equal(lt_cli_bring_data(value, i % 2 == 1), LT_OK);
        assert_string_equal(value, texts[i]);
    }
}

/* FIPS 180-2's first example is the digest of "abc". */
static void a_digest_is_kept_to(void **state) {
    (void)state;
    make_source();
    copies("%s/src/a.json %s/abc "
           "--sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
           "checked by SHA-256");
    assert_true(holds("abc", "abc", 3));
    refuses_copy("%s/src/b.txt %s/no "
                 "--sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                 LT_EXIT_FAILED, "b.txt");
    assert_false(lt_file_exists(in_folder("no")));
    refuses_copy("%s/src/a.json %s/no --sha256 00", LT_EXIT_USAGE, "'00' is not a SHA-256");
}

static void copies_in_json(void **state) {
    char words[WORDS_BYTES], *line, *rest = NULL;
    size_t n = 0;
    json_t *e = NULL;
    ran r;
    (void)state;
    make_source();
    assert_int_equal(lt_file_make_dirs(in_folder("half/sub")), LT_OK);
    copies("%s/src/sub %s/half/sub", ": 1 file, 0.1 MB");
    (void)snprintf(words, sizeof words, "copy %s/src %s/half --json", folder, folder);
    r = run_verb(lt_verb_copy, words);
    assert_int_equal(r.status, LT_EXIT_DONE);
    for (line = strtok_r(r.out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        json_decref(e);
        e = json_loads(line, 0, NULL);
        assert_non_null(e);
        n++;
    }
    assert_true(n >= 1); /* The last line is the result. */
    assert_string_equal(json_string_value(json_object_get(e, "event")), "done");
    near_at(e, "files", 3);
    near_at(e, "files_same", 1);
    near_at(e, "bytes", 60004);
    near_at(e, "moved_bytes", 4);
    near_at(e, "retries", 0);
    assert_true(number_at(e, "seconds") > 0 && number_at(e, "seconds") < 60);
    json_decref(e);
    ran_close(&r);
}

static void lists(void **state) {
    static const struct {
        const char *name;
        double bytes;
    } files[] = {{"a.json", 3}, {"b.txt", 1}, {"sub/c.bin", 60000}};
    char words[WORDS_BYTES], *line, *rest = NULL;
    size_t n = 0;
    ran r;
    (void)state;
    make_source();
    (void)snprintf(words, sizeof words, "copy --list %s/src", folder);
    r = run_verb(lt_verb_copy, words);
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_string_equal(r.out, "2021-02-03 04:05:06               3  a.json\n"
                               "2021-02-03 04:05:06               1  b.txt\n"
                               "2021-02-03 04:05:06           60000  sub/c.bin\n");
    assert_non_null(strstr(r.err, "/src: 3 files, 0.1 MB"));
    ran_close(&r);
    strcat(words, "/b.txt");
    r = run_verb(lt_verb_copy, words);
    assert_string_equal(r.out, "2021-02-03 04:05:06               1  b.txt\n");
    assert_non_null(strstr(r.err, "/b.txt: 1 file, 1 byte"));
    ran_close(&r);
    (void)snprintf(words, sizeof words, "copy --list %s/src --json", folder);
    r = run_verb(lt_verb_copy, words);
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_string_equal(r.err, ""); /* Standard error has no count then. */
    for (line = strtok_r(r.out, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest), n++) {
        json_t *e = json_loads(line, 0, NULL);
        assert_true(e != NULL && n < 3);
        assert_string_equal(json_string_value(json_object_get(e, "name")), files[n].name);
        near_at(e, "bytes", files[n].bytes);
        near_at(e, "modified_s", 1612325106);
        json_decref(e);
    }
    assert_int_equal(n, 3);
    ran_close(&r);
    assert_int_equal(lt_file_make_dirs(in_folder("bad")), LT_OK);
    refuses_copy("--list /no/such", LT_EXIT_FAILED, "/no/such");
    refuses_copy("--list --delete a", LT_EXIT_USAGE, "--list takes one place and no target");
    refuses_copy("--delete a", LT_EXIT_USAGE, "--delete a: give s3://BUCKET/KEY or");
    refuses_copy("--delete s3://b", LT_EXIT_USAGE, "--delete s3://b: give s3://BUCKET/KEY or");
    refuses_copy("--delete s3://b/k --endpoint http://127.0.0.1:1 --anonymous --tries 1",
                 LT_EXIT_FAILED, "s3://b/k"); /* There is no server. */
    refuses_copy("--delete s3://b/", LT_EXIT_USAGE, "--delete s3://b/: give s3://BUCKET/KEY or");
    put("bad/\xff", "x", 1);
    refuses_copy("--list %s/bad --json", LT_EXIT_FAILED, "a name that is not UTF-8");
    refuses_copy("file:///no/such", LT_EXIT_USAGE, "copy takes a source and a target");
}

/* ---- Policies ---- */

/* 64 GPUs: quotas of 24 and 16, slack 8, for two days a guarantee of 16. Lost GPUs are taken from
 * the slack, then from the quota with the lower priority. A tenant borrows what others leave. */
static void the_table_of_a_policy(void **state) {
    static const struct {
        const char *more, *head, *physics, *chemistry;
    } cases[] = {
        {"", "64 of 64 GPUs live; slack 8, guarantees at most 16 at 2027-01-10T08:00:00",
         "24       24       32        2      200", "16       16       48        1      100"},
        {" --live 60 --at 2026-12-01T00:00:00", "60 of 64 GPUs live; slack 4, ",
         "24       24       32        2      200", "16       16       44        1      100"},
        {" --live 44 --at 2026-12-01T00:00:00", "44 of 64 GPUs live; slack 0, ",
         "24       24       20        2      200", "16       16       28        1      100"},
        {" --live 36 --at 2026-12-01T00:00:00", "36 of 64 GPUs live; slack 0, ",
         "24       24       12        2      200", "16       12       24        1      100"},
        {" --live 20 --at 2026-12-01T00:00:00", "20 of 64 GPUs live; slack 0, ",
         "24       20        0        2      200", "16        0       20        1      100"},
        {" --live 44 --at 2027-01-11T00:00:00", "44 of 64 GPUs live; slack 0, ",
         "24       24       20        2      200", "16        4       40        1      100"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[256], physics[128], chemistry[128];
        ran r;
        (void)snprintf(words, sizeof words, "cluster policy recipes/policy.yaml --check%s",
                       cases[i].more);
        (void)snprintf(physics, sizeof physics, "\n%-31s       %s\n", "physics", cases[i].physics);
        (void)snprintf(chemistry, sizeof chemistry, "\n%-31s       %s\n", "chemistry",
                       cases[i].chemistry);
        r = run_verb(lt_verb_cluster, words);
        if (r.status != LT_EXIT_DONE || strncmp(r.out, cases[i].head, strlen(cases[i].head)) != 0 ||
            strstr(r.out, physics) == NULL || strstr(r.out, chemistry) == NULL) {
            fail_msg("%s: status %d, not '%s' with%s%s: %s%s", words, r.status, cases[i].head,
                     physics, chemistry, r.out, r.err);
        }
        ran_close(&r);
    }
}

/* The files that a real slurmdbd has loaded. */
static void the_files_of_a_policy(void **state) {
    static const char *const names[] = {"policy.conf", "accounts.sh", "reservations.sh"};
    char words[WORDS_BYTES], name[64], *all, *at;
    ran r;
    (void)state;
    (void)snprintf(words, sizeof words, "cluster policy recipes/policy.yaml --out %s/policy/new",
                   folder);
    r = run_verb(lt_verb_cluster, words);
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_string_equal(r.out, "");
    ran_close(&r);
    r = run_verb(lt_verb_cluster,
                 "cluster policy recipes/policy.yaml"); /* All, one below another. */
    assert_int_equal(r.status, LT_EXIT_DONE);
    all = at = calloc(1, strlen(r.out) + 1);
    assert_non_null(all);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *text = NULL;
        size_t bytes;
        (void)snprintf(name, sizeof name, "tests/golden/policy/%s", names[i]);
        assert_int_equal(lt_file_read(&text, &bytes, name, 1 << 20), LT_OK);
        (void)snprintf(name, sizeof name, "policy/new/%s", names[i]);
        assert_true(holds(name, text, bytes));
        assert_true(strlen(all) + bytes + 64 < strlen(r.out) + 65);
        at += sprintf(at, "%s==> %s <==\n%s", i > 0 ? "\n" : "", names[i], text);
        free(text);
    }
    assert_string_equal(r.out, all);
    free(all);
    ran_close(&r);
    run_refused(lt_verb_cluster, "cluster policy recipes/policy.yaml --at 2026-12-01T00:00:00",
                LT_EXIT_USAGE, "--at 2026-12-01T00:00:00 has no effect without --live");
    run_refused(lt_verb_cluster, "cluster policy recipes/policy.yaml --check --out x",
                LT_EXIT_USAGE, "--out x has no effect without leaving out --check");
    run_refused(lt_verb_cluster, "cluster policy recipes/policy.yaml --live 65", LT_EXIT_USAGE,
                "--live 65: the cluster has 64 GPUs");
    run_refused(lt_verb_cluster, "cluster policy /no/such", LT_EXIT_FAILED, "/no/such");
}

/* ---- Jobs ---- */

#define JOB  "submit recipes/apertus-8m.yaml --tenant a --dry-run "
#define TAIL " -- --data.train d --out o"

/* batch.size is 64 rows: with 3 or 6 replicas or a multiple of them a step cannot be divided. */
static void the_script_of_a_job(void **state) {
    static const struct {
        const char *words;
        const char *lines[8];
    } cases[] = {
        {JOB "--gpus 8" TAIL,
         {"#SBATCH --job-name=\"apertus-8m\"\n", "#SBATCH --account=\"a\"\n", "#SBATCH --nodes=1\n",
          "#SBATCH --gpus-per-node=8\n", "#SBATCH --signal=USR2@120\n", "\nsizes='1'\n",
          "\nrun='o'\n", "\ngrow_s=1800\n"}},
        {JOB "--gpus 8..32" TAIL,
         {"#SBATCH --nodes=1-4\n", "\nsizes='4 2 1'\n", "\nnode_gpus=8\n", "\naxes=''\n",
          "\nrest=1\n", "#SBATCH --mincpus=64\n", "\nretries=9\n", "\ncheck=1\n"}},
        {JOB "--gpus 4" TAIL " --mesh tp=2,dp=2", /* A part of a node. */
         {"#SBATCH --nodes=1\n", "#SBATCH --gpus-per-node=4\n", "\naxes='tp=2'\n", "\nrest=2\n",
          "\nnode_gpus=4\n", "#SBATCH --mincpus=32\n", "\nmpi='pmix'\n", "\nspares=0\n"}},
        {JOB "--gpus 8..32 --node-gpus 4 --borrow --grow-min 0.5 --partition p --spares 2 "
             "--retries 3 --no-check --cpus 3 --lead 61 --name n --program /x/l" TAIL
             " --mesh pp=2,tp=2,dp=2",
         {"#SBATCH --job-name=\"n\"\n", "#SBATCH --qos=\"a-borrow\"\n",
          "#SBATCH --partition=\"p\"\n", "\naxes='pp=2,tp=2'\n", "\nrest=4\n", "\nsizes='8 4 2'\n",
          "\ngrow_s=30\n", "\nlateen='/x/l'\n"}},
        {JOB "--gpus 16" TAIL " --mesh cp=2,tp=2,dp=4",
         {"\naxes='cp=2,tp=2'\n", "\nrest=4\n", "\nsizes='2'\n", "\nnode_gpus=8\n", "\n", "\n",
          "\n", "\n"}},
        {JOB "--gpus 16 --qos q --reservation r --container i --log f --no-ask-gpus "
             "--mpi pmi2" TAIL,
         {"#SBATCH --qos=\"q\"\n", "#SBATCH --reservation=\"r\"\n", "\nlateen='lateen'\n",
          "#SBATCH --output=\"f\"\n", "\nmpi='pmi2'\n", "#SBATCH --nodes=2\n", "\nsizes='2'\n",
          "\n"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < 8; k++) {
            run_prints(lt_verb_submit, cases[i].words, cases[i].lines[k]);
        }
    }
    ran r = run_verb(lt_verb_submit, JOB "--gpus 8..32" TAIL);
    assert_non_null(strstr(r.err, "with 24 GPUs: batch.size = 64 rows cannot be divided by 24"));
    assert_null(strstr(r.err, "with 16 GPUs"));
    ran_close(&r);
    r = run_verb(lt_verb_submit, JOB "--gpus 8 --no-ask-gpus" TAIL);
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_null(strstr(r.out, "--gpus-per-node"));
    ran_close(&r);
}

static void jobs_that_are_refused(void **state) {
    static const struct {
        const char *words, *why;
    } cases[] = {
        {"submit", "submit needs a recipe, --tenant and --gpus"},
        {"submit r --tenant a", "submit needs a recipe, --tenant and --gpus"},
        {"submit r --gpus 8", "submit needs a recipe, --tenant and --gpus"},
        {"submit --tenant a --gpus 8", "submit needs a recipe, --tenant and --gpus"},
        {JOB "--gpus x" TAIL, "--gpus 'x' is neither N nor MIN..MAX"},
        {JOB "--gpus 8.." TAIL, "--gpus '8..' is neither N nor MIN..MAX"},
        {JOB "--gpus ..8" TAIL, "--gpus '..8' is neither N nor MIN..MAX"},
        {JOB "--gpus 0" TAIL, "--gpus '0' is neither N nor MIN..MAX"},
        {JOB "--gpus 8x" TAIL, "--gpus '8x' is neither N nor MIN..MAX"},
        {JOB "--gpus 16..8" TAIL, "--gpus '16..8' is neither N nor MIN..MAX"},
        {JOB "--gpus 12" TAIL, "--gpus 12: nodes have 8 GPUs (--node-gpus), and a job takes whole"},
        {JOB "--gpus 4..8" TAIL, "--gpus 4..8: nodes have 8 GPUs"},
        {JOB "--gpus 8..20" TAIL, "--gpus 8..20: nodes have 8 GPUs"},
        {JOB "--gpus 24" TAIL, "with 24 GPUs: batch.size = 64 rows cannot be divided by 24"},
        {JOB "--gpus 24..32" TAIL, "with 24 GPUs: batch.size = 64 rows"},
        {JOB "--gpus 8..24" TAIL, "with 24 GPUs: batch.size = 64 rows"},
        {JOB "--gpus 2 --borrow --qos q" TAIL, "--borrow means the QOS a-borrow, and --qos asks"},
        {JOB "--gpus 2 --borrow --reservation r" TAIL, "so it cannot use reservation r"},
        {JOB "--gpus 3" TAIL " --mesh tp=2", "with 3 GPUs: a replica of mesh tp=2 takes 2 GPUs"},
        {JOB "--gpus 2" TAIL " --layout auto", "of which dp may change: layout: auto is not"},
        {JOB "--gpus 2" TAIL " --diloco.sites 2", "of which dp may change: diloco.sites is not"},
        {JOB "--gpus 2 -- --help", "options after -- are for training"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_refused(lt_verb_submit, cases[i].words, LT_EXIT_USAGE, cases[i].why);
    }
    run_refused(lt_verb_submit, "submit /no/such.yaml --tenant a --gpus 2", LT_EXIT_FAILED,
                "/no/such.yaml");
}

/* The script is kept in the run folder, and what sbatch says is printed. */
static void a_job_is_submitted(void **state) {
    static const char sbatch[] = "#!/bin/sh\necho \"Submitted batch job 7: $# $1\"\n";
    static const char bad[] = "#!/bin/sh\necho no such account >&2\nexit 1\n";
    char words[WORDS_BYTES], path[WORDS_BYTES], want[WORDS_BYTES], *before = getenv("PATH");
    char *script = NULL;
    size_t bytes;
    (void)state;
    before = strdup(before != NULL ? before : "/bin");
    assert_int_equal(lt_file_make_dirs(in_folder("bin")), LT_OK);
    put("bin/sbatch", sbatch, sizeof sbatch - 1);
    assert_int_equal(chmod(in_folder("bin/sbatch"), 0755), 0);
    (void)snprintf(path, sizeof path, "%s/bin:%s", folder, before);
    assert_int_equal(setenv("PATH", path, 1), 0);
    (void)snprintf(words, sizeof words,
                   "submit recipes/apertus-8m.yaml --tenant a --gpus 2 -- --data.train d "
                   "--out %s/run/one",
                   folder);
    (void)snprintf(want, sizeof want, "Submitted batch job 7: 1 %s/run/one/job.sbatch\n", folder);
    run_prints(lt_verb_submit, words, want);
    assert_int_equal(lt_file_read(&script, &bytes, in_folder("run/one/job.sbatch"), 1 << 20),
                     LT_OK);
    assert_non_null(strstr(script, "#SBATCH --gpus-per-node=2\n"));
    free(script);
    put("bin/sbatch", bad, sizeof bad - 1);
    assert_int_equal(chmod(in_folder("bin/sbatch"), 0755), 0);
    run_refused(lt_verb_submit, words, LT_EXIT_FAILED, "no such account");
    assert_int_equal(setenv("PATH", before, 1), 0);
    free(before);
}

/* ---- Programs ---- */

static ran in_sandbox(const char *more) {
    char words[WORDS_BYTES];
    (void)snprintf(words, sizeof words, "sandbox --kind rlimits %s", more);
    return run_verb(lt_verb_sandbox, words);
}

static void programs_in_the_sandbox(void **state) {
    static const char jobs[] = "[{\"command\": [\"true\"]}, {\"command\": [\"false\"]}, "
                               "{\"command\": [\"echo\", \"c\"]}]";
    char more[WORDS_BYTES];
    json_t *o;
    ran r;
    (void)state;
    put("one.txt", "one\n", 4);
    put("two.txt", "two\n", 4);
    put("fail.sh", "cat\necho bad >&2\nexit 5\n", 24);
    put("kill.sh", "kill -15 $$\n", 12);
    (void)snprintf(more, sizeof more, "--files %s/one.txt,%s/two.txt -- cat two.txt one.txt",
                   folder, folder);
    r = in_sandbox(more);
    assert_string_equal(r.out, "two\none\n");
    assert_int_equal(r.status, 0);
    ran_close(&r);
    (void)snprintf(more, sizeof more, "--files %s/fail.sh --stdin %s/one.txt -- sh fail.sh", folder,
                   folder);
    r = in_sandbox(more);
    assert_string_equal(r.out, "one\n");
    assert_string_equal(r.err, "bad\n");
    assert_int_equal(r.status, 5);
    ran_close(&r);
    run_input = "two\n";
    r = in_sandbox("--stdin - -- cat");
    assert_string_equal(r.out, "two\n");
    ran_close(&r);
    run_input = "";
    (void)snprintf(more, sizeof more, "--files %s/kill.sh -- sh kill.sh", folder);
    r = in_sandbox(more);
    assert_int_equal(r.status, 128 + 15);
    ran_close(&r);
    r = in_sandbox("--wall 0.3 -- sleep 20");
    assert_int_equal(r.status, 128 + 9);
    assert_non_null(strstr(r.err, "lateen: sandbox: ended by the limit 'wall' after "));
    ran_close(&r);
    r = in_sandbox("--output 2 -- yes"); /* KiB. */
    assert_int_equal(strlen(r.out), 2048);
    assert_non_null(strstr(r.err, "ended by the limit 'output' after "));
    ran_close(&r);
    put("jobs.json", jobs, sizeof jobs - 1);
    (void)snprintf(more, sizeof more, "--parallel 2 --jobs %s/jobs.json", folder);
    r = in_sandbox(more);
    assert_int_equal(r.status, LT_EXIT_DONE);
    o = json_loads(r.out, 0, NULL);
    assert_int_equal(json_array_size(o), 3); /* In their order. */
    near_at(json_array_get(o, 0), "status", 0);
    near_at(json_array_get(o, 1), "status", 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(o, 2), "stdout")), "c\n");
    json_decref(o);
    ran_close(&r);
    memset(more, 0, sizeof more);
    strcat(more, "--bind a");
    for (int i = 0; i < 300; i++) {
        strcat(more, ",a");
    }
    strcat(more, " -- true");
    r = in_sandbox(more);
    assert_int_equal(r.status, LT_EXIT_USAGE);
    assert_non_null(strstr(r.err, "--bind has more than "));
    ran_close(&r);
    (void)snprintf(more, sizeof more, "--files %s/fail.sh --json -- sh fail.sh", folder);
    r = in_sandbox(more);
    assert_int_equal(r.status, LT_EXIT_DONE);
    o = json_loads(r.out, 0, NULL);
    assert_non_null(o);
    near_at(o, "status", 5);
    near_at(o, "stderr_bytes", 4);
    assert_string_equal(json_string_value(json_object_get(o, "stderr")), "bad\n");
    assert_true(json_is_null(json_object_get(o, "limit")));
    json_decref(o);
    ran_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_whole_and_told),
        cmocka_unit_test(a_digest_is_kept_to),
        cmocka_unit_test(copies_in_json),
        cmocka_unit_test(mixtures_of_local_shards),
        cmocka_unit_test(lists),
        cmocka_unit_test(the_table_of_a_policy),
        cmocka_unit_test(the_files_of_a_policy),
        cmocka_unit_test(the_script_of_a_job),
        cmocka_unit_test(jobs_that_are_refused),
        cmocka_unit_test(a_job_is_submitted),
        cmocka_unit_test(programs_in_the_sandbox),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
