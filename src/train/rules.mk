$(OUT)/src/train/report_page.o: src/train/report_head.html src/train/report.html
