$(OUT)/src/train/report/report_page.o: src/train/report/report_head.html src/train/report/report.html
