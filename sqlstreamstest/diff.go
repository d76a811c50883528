package sqlstreamstest

import "strings"

// maxDiff bounds what is compared in detail: the table has as many cells as the product of both lengths.
const maxDiff = 1000

// diff returns the lines that lead from want to have, those that are in both included; "": they are equal.
func diff(want, have []value) string {
	same := len(want) == len(have)
	for i := 0; same && i < len(want); i++ {
		same = want[i].equal(have[i])
	}
	if same {
		return ""
	}
	var lines []string
	line := func(mark string, v value) {
		text := mark + " " + v.text
		if v.note != "" {
			text += "   (" + v.note + ")"
		}
		lines = append(lines, text)
	}
	common := lengths(want[:min(len(want), maxDiff)], have[:min(len(have), maxDiff)])
	i, j := 0, 0
	for i < len(common)-1 && j < len(common[0])-1 {
		switch {
		case want[i].equal(have[j]):
			line(" ", have[j])
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			line("-", want[i])
			i++
		default:
			line("+", have[j])
			j++
		}
	}
	for ; i < len(want); i++ {
		line("-", want[i])
	}
	for ; j < len(have); j++ {
		line("+", have[j])
	}
	return strings.Join(lines, "\n")
}

// lengths returns the length of the longest common subsequence of want[i:] and have[j:], for each i and j.
func lengths(want, have []value) [][]int {
	table := make([][]int, len(want)+1)
	for i := range table {
		table[i] = make([]int, len(have)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(have) - 1; j >= 0; j-- {
			if want[i].equal(have[j]) {
				table[i][j] = table[i+1][j+1] + 1
			} else {
				table[i][j] = max(table[i+1][j], table[i][j+1])
			}
		}
	}
	return table
}
