package rig

import (
	"context"
	"regexp"
	"strings"
)

// Statement is what the server counted for one statement.
type Statement struct {
	Text     string  `json:"text"`
	Top      bool    `json:"top"` // sent by a client, not by a procedure
	Calls    int64   `json:"calls"`
	TotalMS  float64 `json:"total_ms"`
	MeanMS   float64 `json:"mean_ms"`
	Rows     int64   `json:"rows"`
	WALBytes int64   `json:"wal_bytes"`
}

// Statements returns what was counted since the last Track or Forget, the dearest first. What this program itself asks beside the measured work is left out.
func (s *Server) Statements(ctx context.Context, limit int) ([]Statement, error) {
	rows, err := s.Admin.Query(ctx, `
		select query, toplevel, calls, total_exec_time, mean_exec_time, rows, wal_bytes::bigint
		  from pg_stat_statements
		 where query not ilike '%pg_stat_%' and query not ilike 'checkpoint%' and query not ilike 'alter system%' and query not ilike '%pg_reload_conf%'
		 order by total_exec_time desc limit $1`, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []Statement
	for rows.Next() {
		var st Statement
		if err := rows.Scan(&st.Text, &st.Top, &st.Calls, &st.TotalMS, &st.MeanMS, &st.Rows, &st.WALBytes); err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	return all, rows.Err()
}

// Sum adds up the calls and the time of the statements that a client sent and whose text contains part.
func Sum(all []Statement, part string) (calls int64, totalMS float64) {
	for _, st := range all {
		if st.Top && strings.Contains(st.Text, part) {
			calls, totalMS = calls+st.Calls, totalMS+st.TotalMS
		}
	}
	return calls, totalMS
}

var spaces = regexp.MustCompile(`\s+`)

// Short returns the beginning of a statement on one line.
func Short(text string, n int) string {
	runes := []rune(strings.TrimSpace(spaces.ReplaceAllString(text, " ")))
	if len(runes) > n {
		runes = append(runes[:n-1], '…')
	}
	return string(runes)
}
