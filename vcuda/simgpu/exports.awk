# Writes the linker's version script for a release: the functions of functions.def that its version has reached.
BEGIN { FS = "[(, )]+"; print "{ global:" }
/^[FP]\(/ && $3 <= version {
    print "  " $4 ";"
    if ($1 == "P") print "  " $4 $5 ";"
}
END { print "local: *; };" }
