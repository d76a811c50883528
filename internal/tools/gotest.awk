# Reads what go test -json prints, among other lines, as it comes. Shows the
# lines for packages and the output of tests that failed. Adds one line for each
# test, and for each package that failed without one, to the file `results`:
#
#   pass|fail|skip <tab> package <tab> test, or (package)
#
# A line for a package's end goes to the file `packages`.

function value(key,    s) {
	if (!match($0, "\"" key "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
	s = substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 5)
	if (index(s, "\\") == 0) return s
	gsub(/\\\\/, "\001", s)
	gsub(/\\n/, "\n", s)
	gsub(/\\t/, "\t", s)
	gsub(/\\"/, "\"", s)
	gsub(/\\u003c/, "<", s)
	gsub(/\\u003e/, ">", s)
	gsub(/\\u0026/, "\\&", s)
	gsub(/\\r|\\u00../, "", s)
	gsub("\001", "\\", s)
	return s
}

!/^\{.*"Action":"/ { print; fflush(); next }

{
	action = value("Action"); pkg = value("Package"); test = value("Test")
}

action == "build-output" { printf "%s", value("Output"); next }

action == "output" {
	text = value("Output")
	if (test != "") {
		said[pkg, test] = said[pkg, test] text
	} else if (text ~ /^(ok|FAIL|\?) *\t/) {
		printf "%s", text
		fflush()
		if (text !~ /^\?/) printf "%s", text >> packages # else it has no tests
	} else if (text !~ /^(PASS|FAIL|coverage:.*)\n$/) {
		about[pkg] = about[pkg] text
	}
	next
}

action == "pass" || action == "fail" || action == "skip" {
	if (test != "") {
		print action "\t" pkg "\t" test >> results
		if (action == "fail") {
			printf "%s", said[pkg, test]
			failures[pkg]++
		}
		delete said[pkg, test]
	} else if (action == "fail") {
		printf "%s", about[pkg]
		if (!failures[pkg]) {
			# Show what ran when it ended: the rest of the panic is there.
			for (k in said) if (index(k, pkg SUBSEP) == 1) printf "%s", said[k]
			print "fail\t" pkg "\t(package)" >> results
		}
	}
	fflush()
	fflush(results)
}
