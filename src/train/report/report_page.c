/* report_page.c: the assembler copies report_head.html and report.html into the binary, so that the
 * page is edited as HTML files. The head (styles, axes) is shared with align/experiment.html. */
#include "train/report/report_page.h"

__asm__(".section .rodata\n"
        ".global lt_report_page\n"
        "lt_report_page:\n"
        ".incbin \"src/train/report/report_head.html\"\n"
        ".incbin \"src/train/report/report.html\"\n"
        ".byte 0\n"
        ".previous\n");
