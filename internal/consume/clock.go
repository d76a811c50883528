package consume

import "time"

// instant is one reading of both clocks, in nanoseconds. The monotonic one never steps but may stand still while the machine sleeps;
// the wall clock goes on then, but can be set.
type instant struct{ mono, wall int64 }

// never is a monotonic time that does not come.
const never = int64(1) << 62

// maxParting is how far the clocks may part before a lease is verified with the database.
const maxParting = int64(time.Second)

// lease is how long something is ours. It is counted from an instant before the request was sent, so it never ends later here than in
// the database, unless this process's clocks are wrong.
type lease struct {
	taken  instant
	length int64
}

// remaining takes the larger of both clocks' elapsed time, so that neither a sleep nor a step makes a lease longer.
func (l *lease) remaining(now instant) int64 {
	return l.length - max(now.mono-l.taken.mono, now.wall-l.taken.wall)
}

func (l *lease) parted(now instant) bool {
	d := (now.mono - l.taken.mono) - (now.wall - l.taken.wall)
	return d > maxParting || d < -maxParting
}

// ends is the monotonic time at which the lease ends if the clocks go on together.
func (l *lease) ends(now instant) int64 { return now.mono + l.remaining(now) }
