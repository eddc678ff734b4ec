package handover

import (
	"sort"
	"time"

	"github.com/lull-project/lull/kvbudget"
)

// proof is what an order needs before it is done.
type proof uint8

const (
	proofAck    proof = iota // the trainer's answer: grants, floors
	proofRead                // and the device read after it: fences
	proofFallen              // and the device showing held within the budget: shrinks
)

// trainer is one rank of a training job on one device.
type trainer struct {
	id         TrainerID
	job        *job
	dev        *device
	floor      Bytes
	floorKnown bool
	minBudget  Bytes // whole quanta
	least      Bytes // whole quanta; what it keeps when suspended
	worth      worth // what memory is worth to it, nil unknown
	wear       wear

	budget  Bytes // as last ordered
	mayHold Bytes // the largest budget that it may still use
	bytes   Bytes // on the device, as last seen
	seen    bool
	fenced  bool // this session's first order is proven
	gone    bool

	epoch  Epoch // of the last order
	asOf   Epoch // the first that ordered the same: what repeats follow
	open   bool  // the last order is not done
	proof  proof
	acked  bool
	part   Bytes // what it keeps above the order, by its ack: howPart
	proven bool
	change *change

	promise promise // the oldest that is not kept

	want   Bytes // planned budget of this Step
	wanted bool

	share  Bytes // ModeStatic: its budget
	shared bool  // and it is still to be sent

	asked   Bytes // a higher floor, 0 none
	askedAt At

	readAt   At // next ReadTrainer, 0 none
	readWait time.Duration
}

// change is the record of one order, for HandoverDone.
type change struct {
	reason         string
	stage          StageID
	shrink         bool
	from, to       Bytes
	bytesAt        Bytes
	decided, acked At
	within         time.Duration
	how            string
	// since is when the first of the shrinks was decided that this one replaces
	// unfinished: nobody has had the memory since.
	since   At
	failed  bool // counted as one that takes for ever
	failure kvbudget.Failure
}

// job is the trainers whose order is one order.
type job struct {
	name     string
	trainers []*trainer // by ID
	resendAt At         // when an owed order is repeated, 0 none
	resend   time.Duration
}

func (t *trainer) held() Bytes { return max(0, t.bytes-t.floor) }

// charge is the trainer's part of the ledger. Before its floor is known nothing
// was granted: it is charged what it is seen to hold.
func (t *trainer) charge() Bytes {
	if !t.floorKnown {
		return t.bytes
	}
	return t.floor + max(t.mayHold, t.held())
}

// planned is the budget that it has after this Step's orders.
func (t *trainer) planned() Bytes {
	if t.wanted {
		return t.want
	}
	return t.budget
}

// orderable says that an order can reach it and means something.
func (t *trainer) orderable() bool { return t.floorKnown && !t.gone }

// open says that an order of the job is not done.
func (j *job) open() bool {
	for _, t := range j.trainers {
		if t.open {
			return true
		}
	}
	return false
}

func (t *trainer) plan(budget Bytes) { t.want, t.wanted = budget, true }

// addTrainer makes a trainer, or moves it to another job or device.
func (h *Handover) addTrainer(id TrainerID, jobName string, d *device) *trainer {
	t := h.trainer(id)
	if t != nil && t.dev == d && t.job.name == jobName {
		return t
	}
	if t != nil {
		h.detach(t)
	} else {
		t = &trainer{id: id}
	}
	t.dev, t.job = d, h.jobNamed(jobName)
	h.trainers = insertTrainer(h.trainers, t)
	t.dev.trainers = insertTrainer(t.dev.trainers, t)
	t.job.trainers = insertTrainer(t.job.trainers, t)
	return t
}

// detach takes a trainer out of the ledger.
func (h *Handover) detach(t *trainer) {
	h.trainers = removeTrainer(h.trainers, t)
	t.dev.trainers = removeTrainer(t.dev.trainers, t)
	t.job.trainers = removeTrainer(t.job.trainers, t)
	if len(t.job.trainers) > 0 {
		return
	}
	for i, j := range h.jobs {
		if j == t.job {
			h.jobs = append(h.jobs[:i], h.jobs[i+1:]...)
			return
		}
	}
}

func (h *Handover) jobNamed(name string) *job {
	i := sort.Search(len(h.jobs), func(i int) bool { return h.jobs[i].name >= name })
	if i < len(h.jobs) && h.jobs[i].name == name {
		return h.jobs[i]
	}
	h.jobs = append(h.jobs, nil)
	copy(h.jobs[i+1:], h.jobs[i:])
	h.jobs[i] = &job{name: name}
	return h.jobs[i]
}

func insertTrainer(list []*trainer, t *trainer) []*trainer {
	i := sort.Search(len(list), func(i int) bool { return list[i].id >= t.id })
	list = append(list, nil)
	copy(list[i+1:], list[i:])
	list[i] = t
	return list
}

func removeTrainer(list []*trainer, t *trainer) []*trainer {
	for i, x := range list {
		if x == t {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}
