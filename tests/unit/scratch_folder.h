/* scratch_folder.h: a folder for the files of a test program. make_folder and remove_folder are for
 * cmocka_run_group_tests. */
#ifndef LT_TESTS_UNIT_SCRATCH_FOLDER_H
#define LT_TESTS_UNIT_SCRATCH_FOLDER_H

#include <stdlib.h>

#include "base/file.h"

static char folder[] = "/tmp/lateen-test-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) != LT_OK;
}

#endif
