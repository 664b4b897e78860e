/* experiment_page.c: the assembler copies the head that all reports share, and experiment.html,
 * into the binary. */
#include "align/experiment_page.h"

__asm__(".section .rodata\n"
        ".global lt_experiment_page\n"
        "lt_experiment_page:\n"
        ".incbin \"src/train/report/report_head.html\"\n"
        ".incbin \"src/align/experiment.html\"\n"
        ".byte 0\n"
        ".previous\n");
