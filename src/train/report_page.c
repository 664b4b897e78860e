/* report_page.c: the assembler copies report.html into the binary, so that the page is edited as an
 * HTML file. */
#include "train/report_page.h"

__asm__(".section .rodata\n"
        ".global lt_report_page\n"
        "lt_report_page:\n"
        ".incbin \"src/train/report.html\"\n"
        ".byte 0\n"
        ".previous\n");
