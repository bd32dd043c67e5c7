//! [`Wakes`]: which of a connection's futures are to be polled.
//!
//! Each has a waker of its own, which notes that and wakes the connection's task, unless that is just
//! being polled: then it sees the note before it ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// What is woken of a connection.
pub(super) struct Wakes {
    shared: Arc<Shared>,
    /// Places of streams that are to be polled in this turn, in the order in which they were woken.
    due: VecDeque<usize>,
    link: (Arc<Note>, Waker),
    /// One for each place, made when it is first used.
    streams: Vec<(Arc<Note>, Waker)>,
}

struct Shared {
    state: Mutex<State>,
    /// Whether a place is in the state, so that it need not be locked to find none.
    some: AtomicBool,
}

struct State {
    /// Places of streams, in the order in which they were woken.
    woken: VecDeque<usize>,
    /// The task to wake, and whether it waits for that: not while it is polled, or was woken.
    task: Waker,
    waits: bool,
}

/// What one waker stands for.
struct Note {
    shared: Arc<Shared>,
    /// The place of a stream; none for the link.
    place: Option<usize>,
    woken: AtomicBool,
}

/// Whether a task that has looked at everything may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Over,
    GoesOn,
}

impl Wakes {
    /// Nothing but the link is there, and woken.
    pub(super) fn new() -> Self {
        let state = State { woken: VecDeque::new(), task: Waker::noop().clone(), waits: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), some: AtomicBool::new(false) });
        let link = Note::new(&shared, None);
        link.0.woken.store(true, Ordering::Release);
        Self { shared, due: VecDeque::new(), link, streams: Vec::new() }
    }

    /// The task is polled: nobody needs to wake it.
    pub(super) fn begin(&mut self) {
        let mut state = self.shared.lock();
        state.waits = false;
        self.shared.hand_over(&mut state, &mut self.due);
    }

    /// The stream that was woken first.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.due.is_empty() && self.shared.some.load(Ordering::Acquire) {
            self.shared.hand_over(&mut self.shared.lock(), &mut self.due);
        }
        let place = self.due.pop_front()?;
        // From here on it can be woken again. Whoever finds that it was woken already has told what for
        // before, and this sees it: a store alone would not.
        self.streams[place].0.woken.swap(false, Ordering::AcqRel);
        Some(place)
    }

    /// A stream begins: it is polled as if it were woken.
    pub(super) fn start(&mut self, place: usize) {
        while self.streams.len() <= place {
            self.streams.push(Note::new(&self.shared, Some(self.streams.len())));
        }
        // One that is woken already, as the stream before it at this place was, has its turn anyway.
        if !self.streams[place].0.woken.swap(true, Ordering::AcqRel) {
            self.due.push_back(place);
        }
    }

    /// Whether the link was woken since this was last asked.
    pub(super) fn take_link(&mut self) -> bool {
        let woken = &self.link.0.woken;
        woken.load(Ordering::Acquire) && woken.swap(false, Ordering::AcqRel)
    }

    pub(super) fn wake_link(&self) {
        self.link.1.wake_by_ref();
    }

    /// What the link is polled with.
    pub(super) fn of_link(&self) -> Context<'_> {
        Context::from_waker(&self.link.1)
    }

    /// What the stream at `place`, which has begun, is polled with.
    pub(super) fn of_stream(&self, place: usize) -> Context<'_> {
        Context::from_waker(&self.streams[place].1)
    }

    /// The task has looked at everything. If that is still so, it is woken with the next of them.
    pub(super) fn end(&mut self, cx: &Context<'_>) -> Turn {
        if !self.due.is_empty() {
            return Turn::GoesOn;
        }
        let mut state = self.shared.lock();
        self.shared.hand_over(&mut state, &mut self.due);
        if !self.due.is_empty() || self.link.0.woken.load(Ordering::Acquire) {
            return Turn::GoesOn;
        }
        state.task.clone_from(cx.waker());
        state.waits = true;
        Turn::Over
    }

    /// The task has more to do, and lets others go first.
    pub(super) fn leave(&mut self, cx: &Context<'_>) {
        cx.waker().wake_by_ref();
    }
}

impl Shared {
    /// A panic elsewhere leaves the list as it was.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what was woken to what is due.
    fn hand_over(&self, state: &mut State, due: &mut VecDeque<usize>) {
        if state.woken.is_empty() {
            return;
        }
        self.some.store(false, Ordering::Relaxed);
        if due.is_empty() {
            std::mem::swap(due, &mut state.woken);
        } else {
            due.append(&mut state.woken);
        }
    }
}

impl Note {
    fn new(shared: &Arc<Shared>, place: Option<usize>) -> (Arc<Self>, Waker) {
        let shared = Arc::clone(shared);
        let note = Arc::new(Self { shared, place, woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&note));
        (note, waker)
    }
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.shared.lock();
        if let Some(place) = self.place {
            state.woken.push_back(place);
            self.shared.some.store(true, Ordering::Release);
        }
        if std::mem::take(&mut state.waits) {
            let task = state.task.clone();
            drop(state);
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn task() -> (Arc<Task>, Waker) {
        let task = Arc::<Task>::default();
        (Arc::clone(&task), Waker::from(task))
    }

    /// The waker of a stream at `place` that has begun and was polled.
    fn begun(wakes: &mut Wakes, place: usize) -> Waker {
        wakes.start(place);
        assert_eq!(wakes.next(), Some(place), "it is polled once it has begun");
        wakes.of_stream(place).waker().clone()
    }

    /// Polls as a connection does, and returns what was polled.
    fn turn(wakes: &mut Wakes, cx: &Context<'_>) -> Vec<Option<usize>> {
        let mut polled = Vec::new();
        wakes.begin();
        loop {
            while let Some(place) = wakes.next() {
                polled.push(Some(place));
            }
            if wakes.take_link() {
                polled.push(None);
            }
            if wakes.end(cx) == Turn::Over {
                return polled;
            }
        }
    }

    #[test]
    fn what_was_woken_is_polled_once_in_order_and_the_link_last() {
        let mut wakes = Wakes::new();
        let (task, waker) = task();
        let cx = Context::from_waker(&waker);
        assert_eq!(turn(&mut wakes, &cx), [None], "it begins with the link");
        let [second, first] = [1, 0].map(|place| begun(&mut wakes, place));
        wakes.wake_link();
        second.wake_by_ref();
        first.wake_by_ref();
        second.wake();
        assert_eq!(task.0.load(Ordering::SeqCst), 1, "it is on its way");
        assert_eq!(turn(&mut wakes, &cx), [Some(1), Some(0), None]);
        assert_eq!(turn(&mut wakes, &cx), [], "nobody has asked");
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn who_wakes_a_task_that_is_polled_is_seen_before_it_ends() {
        let mut wakes = Wakes::new();
        let (task, waker) = task();
        let cx = Context::from_waker(&waker);
        let waker_of_stream = begun(&mut wakes, 0);
        turn(&mut wakes, &cx);
        wakes.begin();
        waker_of_stream.wake_by_ref();
        assert_eq!(wakes.end(&cx), Turn::GoesOn);
        assert_eq!(wakes.next(), Some(0));
        // Again while it is polled.
        waker_of_stream.wake_by_ref();
        assert_eq!(wakes.next(), Some(0));
        assert_eq!(wakes.end(&cx), Turn::Over);
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
    }

    /// A place whose last stream was woken too late is taken by another.
    #[test]
    fn a_stream_is_polled_once_though_the_one_before_it_was_woken() {
        let mut wakes = Wakes::new();
        let (_, waker) = task();
        let cx = Context::from_waker(&waker);
        begun(&mut wakes, 0).wake();
        wakes.start(0);
        assert_eq!(turn(&mut wakes, &cx), [Some(0), None]);
    }

    /// However the threads meet: what was woken is polled, at once or when the task is woken.
    #[test]
    fn no_wake_is_lost_between_threads() {
        const WAKES: usize = 2_000;
        let mut wakes = Wakes::new();
        let (task, waker) = task();
        let cx = Context::from_waker(&waker);
        let (waker, polled) = (begun(&mut wakes, 0), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=WAKES {
                    waker.wake_by_ref();
                    while polled.load(Ordering::SeqCst) < n {
                        thread::yield_now();
                    }
                }
            });
            while polled.load(Ordering::SeqCst) < WAKES {
                let before = task.0.load(Ordering::SeqCst);
                let count = turn(&mut wakes, &cx).iter().filter(|place| place.is_some()).count();
                let all = polled.fetch_add(count, Ordering::SeqCst) + count;
                while all < WAKES && task.0.load(Ordering::SeqCst) == before {
                    thread::yield_now();
                }
            }
        });
    }
}
