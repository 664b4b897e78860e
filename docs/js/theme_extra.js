/* Debian's mkdocs lacks this file of its theme: the theme styles tables of the class "docutils" only. */
document.querySelectorAll('.rst-content table').forEach(function (table) {
    var box = document.createElement('div');
    table.classList.add('docutils');
    box.className = 'wy-table-responsive';
    table.parentNode.insertBefore(box, table);
    box.appendChild(table);
});
