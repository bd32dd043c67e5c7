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
    shared: Arc<Mutex<Shared>>,
    link: (Arc<Note>, Waker),
    /// One for each place, made when it is first used.
    streams: Vec<(Arc<Note>, Waker)>,
}

struct Shared {
    /// Places of streams, in the order in which they were woken.
    woken: VecDeque<usize>,
    /// The task to wake; none while it is polled, or was woken.
    task: Option<Waker>,
}

/// What one waker stands for.
struct Note {
    shared: Arc<Mutex<Shared>>,
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
        let shared = Arc::new(Mutex::new(Shared { woken: VecDeque::new(), task: None }));
        let link = Note::new(&shared, None);
        link.0.woken.store(true, Ordering::Release);
        Self { shared, link, streams: Vec::new() }
    }

    /// The task is polled: nobody needs to wake it.
    pub(super) fn begin(&mut self) {
        lock(&self.shared).task = None;
    }

    /// The stream that was woken first.
    pub(super) fn next(&mut self) -> Option<usize> {
        let place = lock(&self.shared).woken.pop_front()?;
        // From here on it can be woken again. Whoever finds that it was woken already has told what for
        // before, and this sees it: a store alone would not.
        self.streams[place].0.woken.swap(false, Ordering::AcqRel);
        Some(place)
    }

    /// Whether the link was woken since this was last asked.
    pub(super) fn take_link(&mut self) -> bool {
        self.link.0.woken.swap(false, Ordering::AcqRel)
    }

    pub(super) fn wake_link(&self) {
        self.link.1.wake_by_ref();
    }

    /// What the link is polled with.
    pub(super) fn of_link(&self) -> Context<'_> {
        Context::from_waker(&self.link.1)
    }

    /// What the stream at `place` is polled with.
    pub(super) fn of_stream(&mut self, place: usize) -> Context<'_> {
        while self.streams.len() <= place {
            self.streams.push(Note::new(&self.shared, Some(self.streams.len())));
        }
        Context::from_waker(&self.streams[place].1)
    }

    /// The task has looked at everything. If that is still so, it is woken with the next of them.
    pub(super) fn end(&mut self, cx: &Context<'_>) -> Turn {
        let mut shared = lock(&self.shared);
        if !shared.woken.is_empty() || self.link.0.woken.load(Ordering::Acquire) {
            return Turn::GoesOn;
        }
        shared.task = Some(cx.waker().clone());
        Turn::Over
    }

    /// The task has more to do, and lets others go first.
    pub(super) fn leave(&mut self, cx: &Context<'_>) {
        cx.waker().wake_by_ref();
    }
}

impl Note {
    fn new(shared: &Arc<Mutex<Shared>>, place: Option<usize>) -> (Arc<Self>, Waker) {
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
        let mut shared = lock(&self.shared);
        shared.woken.extend(self.place);
        let task = shared.task.take();
        drop(shared);
        task.into_iter().for_each(Waker::wake);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
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
        let [second, first] = [1, 0].map(|place| wakes.of_stream(place).waker().clone());
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
        turn(&mut wakes, &cx);
        wakes.begin();
        wakes.of_stream(0).waker().wake_by_ref();
        assert_eq!(wakes.end(&cx), Turn::GoesOn);
        assert_eq!(wakes.next(), Some(0));
        // Again while it is polled.
        wakes.of_stream(0).waker().wake_by_ref();
        assert_eq!(wakes.next(), Some(0));
        assert_eq!(wakes.end(&cx), Turn::Over);
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
    }

    /// However the threads meet: what was woken is polled, at once or when the task is woken.
    #[test]
    fn no_wake_is_lost_between_threads() {
        const WAKES: usize = 2_000;
        let mut wakes = Wakes::new();
        let (task, waker) = task();
        let cx = Context::from_waker(&waker);
        let (waker, polled) = (wakes.of_stream(0).waker().clone(), AtomicUsize::new(0));
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
