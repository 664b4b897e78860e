$(OUT)/src/train/report_page.o: src/train/report.html
