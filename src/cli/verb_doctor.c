/* verb_doctor.c: `lateen doctor` */
#include <stdio.h>

#include "base/thread.h"
#include "cli/verb.h"

#define DOCTOR_OPTIONS(X)                                                                          \
    X(BOOL, ops, "ops", "false", 0, 0, "", "list which implementation serves each op and shape, and why others refused")

typedef struct {
    DOCTOR_OPTIONS(LT_OPTION_FIELD)
} doctor_options;
#define LT_OPTION_STRUCT doctor_options
static const lt_option rows[] = {DOCTOR_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_doctor_options = LT_OPTION_TABLE("doctor", rows);

int lt_verb_doctor(int argc, char **argv);
int lt_verb_doctor(int argc, char **argv) {
    doctor_options o;
    int n = 0, status = LT_EXIT_DONE;
    if (!lt_verb_parse(&lt_verb_doctor_options, &o, argc, argv, "doctor [--ops]",
                       "Tell what this machine is and can do.", NULL, 0, &n, &status)) {
        return status;
    }
    printf("threads     %d\n", lt_thread_count());
    return LT_EXIT_DONE;
}
