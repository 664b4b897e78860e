/* The memory of nodes: its folders, links that are repaired, the interval of snapshots. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/agent/memory.h"
#include "train/checkpoint/snapshot.h"

static void put(const char *root, const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, root, name), LT_OK);
    assert_int_equal(lt_file_make_parent(path), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
}

static void point(const char *root, const char *from, const char *to) {
    char target[LT_PATH_BYTES], path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(target, root, to), LT_OK);
    assert_int_equal(lt_path_join(path, root, from), LT_OK);
    assert_int_equal(lt_file_make_parent(path), LT_OK);
    assert_int_equal(lt_memory_link(target, path), LT_OK);
}

static bool holds(const char *root, const char *name, const char *want) {
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes;
    bool same;
    assert_int_equal(lt_path_join(path, root, name), LT_OK);
    same = lt_file_read(&text, &bytes, path, 64) == LT_OK && strcmp(text, want) == 0;
    free(text);
    return same;
}

/* Node 0 loses its memory; node 1 has copies of some of it. */
static void broken_links_are_repaired(void **state) {
    char root[LT_PATH_BYTES], lost[LT_PATH_BYTES];
    (void)state;
    assert_int_equal(lt_memory_make(root, 2), LT_OK);
    static const char *const made[] = {"set",        "node-0/own",  "node-0/kept",
                                       "node-1/own", "node-1/kept", NULL};
    for (int i = 0; made[i] != NULL; i++) {
        assert_true(lt_path_join(lost, root, made[i]) == LT_OK && lt_file_is_dir(lost));
    }
    assert_true(lt_path_join(lost, root, "node-2") == LT_OK && !lt_file_exists(lost));
    put(root, "node-0/own/rank-0/step-000000005/weights", "five");
    put(root, "node-0/own/rank-0/step-000000010/weights", "ten");
    put(root, "node-1/own/rank-1/step-000000010/other", "of node 1");
    put(root, "node-1/kept/rank-0/step-000000005/weights", "five");
    put(root, "node-0/own/rank-0/step-000000001/first", "one");
    put(root, "node-1/kept/rank-0/step-000000001/first", "one");
    point(root, "set/step-000000001/first", "node-0/own/rank-0/step-000000001/first");
    point(root, "set/step-000000005", "node-0/own/rank-0/step-000000005");
    point(root, "set/step-000000010/weights", "node-0/own/rank-0/step-000000010/weights");
    point(root, "set/step-000000010/other", "node-1/own/rank-1/step-000000010/other");
    /* A copy that node 0 held for node 1. */
    put(root, "node-0/kept/rank-1/step-000000015/other", "fifteen");
    put(root, "node-1/own/rank-1/step-000000015/other", "fifteen");
    point(root, "set/step-000000015/other", "node-0/kept/rank-1/step-000000015/other");
    assert_int_equal(lt_path_join(lost, root, "node-0"), LT_OK);
    assert_int_equal(lt_file_remove_tree(lost), LT_OK);
    assert_false(holds(root, "set/step-000000005/weights", "five"));
    lt_memory_repair(root, 2);
    assert_true(holds(root, "set/step-000000001/first", "one"));
    assert_true(holds(root, "set/step-000000005/weights", "five"));
    assert_true(holds(root, "set/step-000000010/other", "of node 1"));
    assert_true(holds(root, "set/step-000000015/other", "fifteen"));
    assert_false(holds(root, "set/step-000000010/weights", "ten"));
    put(root, "node-1/kept/rank-0/step-000000010/weights", "ten");
    lt_memory_repair(root, 2);
    assert_true(holds(root, "set/step-000000010/weights", "ten"));
    assert_int_equal(lt_file_remove_tree(root), LT_OK);
}

/* Make the memory of a launcher that has ended: nobody holds the lock of the new file. Its pid is
 * that of a process that lives. */
static void make_left(char root[LT_PATH_BYTES]) {
    char name[32];
    assert_int_equal(lt_memory_make(root, 1), LT_OK);
    (void)snprintf(name, sizeof name, "%d\n", (int)getpid());
    put(root, "launcher", name);
}

/* A launcher removes the files of launchers that have ended, and no other files. One that lives in
 * another container has a pid that does not exist here, or is another process. */
static void old_memory_is_removed(void **state) {
    char mine[LT_PATH_BYTES], old[LT_PATH_BYTES], again[LT_PATH_BYTES], path[LT_PATH_BYTES];
    FILE *f;
    (void)state;
    assert_int_equal(lt_memory_make(mine, 1), LT_OK);
    assert_int_equal(lt_path_join(path, mine, "launcher"), LT_OK);
    f = fopen(path, "r+e");
    assert_true(f != NULL && fputs("2147483646\n", f) >= 0 && fclose(f) == 0);
    make_left(old);
    assert_int_equal(lt_memory_make(again, 1), LT_OK);
    assert_true(lt_file_exists(mine));
    assert_false(lt_file_exists(old));
    make_left(old);
    assert_true(lt_memory_sweep() >= 1); /* Other programs may have left some, too. */
    assert_true(lt_file_exists(mine) && lt_file_exists(again) && !lt_file_exists(old));
    /* Nobody owns a folder that is being made, so it is not removed. */
    assert_true(lt_path_join(path, again, "launcher") == LT_OK && unlink(path) == 0);
    (void)lt_memory_sweep();
    assert_true(lt_file_exists(again));
    assert_int_equal(lt_file_remove_tree(mine), LT_OK);
    assert_int_equal(lt_file_remove_tree(again), LT_OK);
}

/* Several agents on a machine: the first creates the folder, one owns it, and folders of others
 * are not used. */
static void agents_of_a_machine_share_a_folder(void **state) {
    char root[LT_PATH_BYTES], other[LT_PATH_BYTES];
    struct stat st;
    bool owner = true;
    (void)state;
    make_left(other);
    (void)snprintf(root, sizeof root, "/dev/shm/lateen-run-t%d", (int)getpid());
    assert_int_equal(lt_memory_enter(root), LT_OK); /* The agent of a rank. */
    assert_int_equal(lstat(root, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(lt_memory_join(root, &owner), LT_OK);
    assert_true(owner && !lt_file_exists(other)); /* The folder of a launcher that has ended. */
    assert_true(lt_file_exists(root));
    assert_int_equal(lt_memory_join(root, &owner), LT_OK);
    assert_false(owner); /* This process already owns it. */
    put(root, "launcher", "2147483646\n");
    put(root, "node-0/own/x", "kept");
    assert_int_equal(lt_memory_join(root, &owner), LT_OK);
    assert_true(owner && holds(root, "node-0/own/x", "kept"));
    assert_true(lt_path_join(other, root, "launcher") == LT_OK && unlink(other) == 0);
    /* Its name could not be written, so no launcher would remove it. */
    put(root, "launcher/x", "");
    assert_int_not_equal(lt_memory_join(root, &owner), LT_OK);
    assert_int_equal(chmod(root, 0755), 0);
    assert_int_equal(lt_memory_enter(root), LT_ERR_IO);
    assert_int_equal(lt_file_remove_tree(root), LT_OK);
    assert_int_equal(symlink("/tmp", root), 0);
    assert_int_equal(lt_memory_enter(root), LT_ERR_IO);
    assert_int_equal(unlink(root), 0);
    assert_int_equal(lt_memory_enter("/dev/shm/lateen-run-x/../../tmp/y"), LT_ERR_ARG);
    assert_int_equal(lt_memory_enter("/tmp/lateen-run-x"), LT_ERR_ARG);
}

/* The set of a machine: files of all holders of a step, its own before copies; a step without a
 * manifest does not count, nor does one that is being received. */
static void a_set_is_assembled(void **state) {
    char root[LT_PATH_BYTES];
    (void)state;
    assert_int_equal(lt_memory_make(root, 3), LT_OK);
    put(root, "node-1/own/rank-1/step-000000010/part-1", "written here");
    put(root, "node-1/kept/rank-1/step-000000010/part-1", "an older copy");
    put(root, "node-1/kept/rank-0/step-000000010/part-0", "of node 0");
    put(root, "node-1/kept/rank-0-set/step-000000010/manifest.json", "{}");
    put(root, "node-1/kept/rank-0/step-000000015.tmp/manifest.json", "{}");
    put(root, "node-1/own/rank-1/step-000000020/part-1", "no manifest");
    put(root, "set/step-000000005/manifest.json", "left over");
    assert_int_equal(lt_memory_assemble(root), LT_OK);
    assert_true(holds(root, "set/step-000000010/part-0", "of node 0"));
    assert_true(holds(root, "set/step-000000010/part-1", "written here"));
    assert_true(holds(root, "set/step-000000010/manifest.json", "{}"));
    char set[LT_PATH_BYTES], **names;
    size_t n;
    assert_int_equal(lt_path_join(set, root, "set"), LT_OK);
    assert_int_equal(lt_file_list(&names, &n, set), LT_OK);
    assert_int_equal(n, 1);
    lt_file_list_free(names, n);
    assert_int_equal(lt_file_remove_tree(root), LT_OK);
}

static void memory_of_a_rank(void **state) {
    lt_node_memory m;
    (void)state;
    memset(&m, 1, sizeof m);
    assert_false(lt_node_memory_of_rank(&m));
    assert_true(m.every == 0 && m.root[0] == '\0' && !m.apart);
    (void)setenv(LT_ENV_MEMORY, "/m", 1);
    (void)setenv(LT_ENV_NODE, "3", 1);
    (void)setenv(LT_ENV_SNAPSHOT, "7", 1);
    assert_false(lt_node_memory_of_rank(&m));
    (void)setenv(LT_ENV_MTBF, "600", 1);
    assert_true(lt_node_memory_of_rank(&m));
    assert_string_equal(m.set, "/m/set");
    assert_string_equal(m.own, "/m/node-3/own");
    assert_true(m.every == 7 && m.mtbf_s == 600.0);
    assert_string_equal(m.root, "/m");
    assert_true(m.node == 3 && !m.apart);
    (void)setenv("LATEEN_LOCAL_RANK", "0", 1); /* Only ranks on several machines have it. */
    assert_true(lt_node_memory_of_rank(&m) && m.apart);
}

/* Daly's formula where it decides, the bound of three per cent where it does not. */
static void intervals_of_snapshots(void **state) {
    (void)state;
    assert_true(fabs(lt_daly_interval_s(10000.0, 2.0) - 199.3) < 1.0); /* sqrt(2 w M) = 200. */
    assert_true(lt_daly_interval_s(10.0, 30.0) == 10.0);
    /* Up to a save that takes twice the time between faults: 17.32 (1 + 0.2887 + 0.0833) - 15. */
    assert_true(fabs(lt_daly_interval_s(10.0, 15.0) - 8.764) < 1e-3);
    assert_int_equal(lt_snapshot_interval(10000.0, 2.0, 1.0), 199);
    assert_int_equal(lt_snapshot_interval(100.0, 2.0, 1.0), 67); /* 2 s are 3 % of 66.7 s. */
    assert_int_equal(lt_snapshot_interval(10000.0, 0.0, 1.0), 1);
    assert_int_equal(lt_snapshot_interval(1e9, 1e3, 0.0), 1000000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_links_are_repaired),
        cmocka_unit_test(old_memory_is_removed),
        cmocka_unit_test(agents_of_a_machine_share_a_folder),
        cmocka_unit_test(a_set_is_assembled),
        cmocka_unit_test(memory_of_a_rank),
        cmocka_unit_test(intervals_of_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
