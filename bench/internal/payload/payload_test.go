package payload

import "testing"

func TestOrdersHaveTheirSize(t *testing.T) {
	set, err := NewSet(1000, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i, data := range set.Encoded {
		if len(data) != 1000 {
			t.Fatalf("order %d has %d bytes", i, len(data))
		}
	}
}
