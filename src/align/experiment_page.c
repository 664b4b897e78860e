/* experiment_page.c: includes experiment.html, and the head that all reports share, in the binary,
 * by an assembler directive. */
#include "align/experiment_page.h"

__asm__(".section .rodata\n"
        ".global lt_experiment_page\n"
        "lt_experiment_page:\n"
        ".incbin \"src/train/report/report_head.html\"\n"
        ".incbin \"src/align/experiment.html\"\n"
        ".byte 0\n"
        ".previous\n");
