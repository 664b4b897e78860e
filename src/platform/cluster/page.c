/* page.c: includes page.html in the binary, by an assembler directive, after the head that it
 * shares with the report of a run (styles, axes). */
#include "platform/cluster/page.h"

__asm__(".section .rodata\n"
        ".global lt_cluster_page\n"
        "lt_cluster_page:\n"
        ".incbin \"src/train/report/report_head.html\"\n"
        ".incbin \"src/platform/cluster/page.html\"\n"
        ".byte 0\n"
        ".previous\n");
