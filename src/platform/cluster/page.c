/* page.c: the assembler copies page.html into the binary, behind the head that the report of a run
 * has, too (styles, axes). */
#include "platform/cluster/page.h"

__asm__(".section .rodata\n"
        ".global lt_cluster_page\n"
        "lt_cluster_page:\n"
        ".incbin \"src/train/report/report_head.html\"\n"
        ".incbin \"src/platform/cluster/page.html\"\n"
        ".byte 0\n"
        ".previous\n");
