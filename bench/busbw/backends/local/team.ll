; Kernels without an element type, and the loop in which threads wait for work. kernels.py fills in the placeholders.

attributes #0 = { nounwind "no-builtins" }

declare ptr @memcpy(ptr, ptr, i64)
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
$pause_declared

define i32 @memory_copy(ptr %out, ptr %left, ptr %right, i64 %count) {
  %copied = call ptr @memcpy(ptr %out, ptr %left, i64 %count) nobuiltin
  ret i32 0
}

define i32 @nothing(ptr %out, ptr %left, ptr %right, i64 %count) {
  ret i32 0
}

; State of a team, each field on its own line: the number of the latest work item, the number of sleeping threads, the
; number of unfinished threads, and the work: a kernel (null: end) and one piece for each thread.

define private void @do(ptr %kernel, ptr %piece) {
  %out = load ptr, ptr %piece
  %left_place = getelementptr ptr, ptr %piece, i64 1
  %left = load ptr, ptr %left_place
  %right_place = getelementptr ptr, ptr %piece, i64 2
  %right = load ptr, ptr %right_place
  %count_place = getelementptr i64, ptr %piece, i64 3
  %count = load i64, ptr %count_place
  %code = call i32 %kernel(ptr %out, ptr %left, ptr %right, i64 %count)
  ret void
}

define i32 @serve(ptr %number, i64 %member) {
begin:
  %sleepers = getelementptr [$line x i8], ptr %number, i64 1
  %unfinished = getelementptr [$line x i8], ptr %number, i64 2
  %kernel_place = getelementptr [$line x i8], ptr %number, i64 3
  %pieces_place = getelementptr ptr, ptr %kernel_place, i64 1
  %offset = mul i64 %member, $line
  br label %wait
wait:
  %seen = phi i32 [ 0, %begin ], [ %given, %work ], [ %seen, %awake ]
  br label %look
look:
  %turn = phi i64 [ 0, %wait ], [ %next, %linger ], [ %next, %offer ]
  %given = load atomic i32, ptr %number acquire, align 4
  %is_new = icmp ne i32 %given, %seen
  br i1 %is_new, label %given_out, label %idle
idle:
  $pause
  %next = add i64 %turn, 1
  %is_tired = icmp eq i64 %next, $spins
  br i1 %is_tired, label %lie_down, label %linger
linger:
  %part = urem i64 %next, $patience
  %is_time = icmp eq i64 %part, 0
  br i1 %is_time, label %offer, label %look
offer:
  %offered = call i32 @sched_yield()
  br label %look
lie_down:
  ; Either this thread sees the new number, or the distributing thread sees that one sleeps.
  %others = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %at_last = load atomic i32, ptr %number seq_cst, align 4
  %is_same = icmp eq i32 %at_last, %seen
  br i1 %is_same, label %sleep, label %awake
sleep:
  %slept = call i64 (i64, ...) @syscall(i64 $futex, ptr %number, i64 $wait, i32 %seen, ptr null)
  br label %awake
awake:
  %fewer = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %wait
given_out:
  %kernel = load ptr, ptr %kernel_place
  %is_end = icmp eq ptr %kernel, null
  br i1 %is_end, label %end, label %work
work:
  %pieces = load ptr, ptr %pieces_place
  %piece = getelementptr i8, ptr %pieces, i64 %offset
  call void @do(ptr %kernel, ptr %piece)
  %finished = atomicrmw sub ptr %unfinished, i32 1 release
  br label %wait
end:
  %ended = atomicrmw sub ptr %unfinished, i32 1 release
  ret i32 0
}

define i32 @run(ptr %number, ptr %kernel, ptr %pieces, i64 %others) {
begin:
  %sleepers = getelementptr [$line x i8], ptr %number, i64 1
  %unfinished = getelementptr [$line x i8], ptr %number, i64 2
  %kernel_place = getelementptr [$line x i8], ptr %number, i64 3
  %pieces_place = getelementptr ptr, ptr %kernel_place, i64 1
  store ptr %kernel, ptr %kernel_place
  store ptr %pieces, ptr %pieces_place
  %all = trunc i64 %others to i32
  store atomic i32 %all, ptr %unfinished release, align 4
  %before = atomicrmw add ptr %number, i32 1 seq_cst
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %is_quiet = icmp eq i32 %asleep, 0
  br i1 %is_quiet, label %ready, label %wake
wake:
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr %number, i64 $wake, i32 2147483647)
  br label %ready
ready:
  %is_end = icmp eq ptr %kernel, null
  br i1 %is_end, label %wait, label %work
work:
  call void @do(ptr %kernel, ptr %pieces)
  br label %wait
wait:
  br label %look
look:
  %turn = phi i64 [ 0, %wait ], [ %next, %idle ], [ %turn, %offer ]
  %left = load atomic i32, ptr %unfinished acquire, align 4
  %is_done = icmp eq i32 %left, 0
  br i1 %is_done, label %end, label %idle
idle:
  $pause
  %next = add i64 %turn, 1
  %is_impatient = icmp ugt i64 %next, $patience
  br i1 %is_impatient, label %offer, label %look
offer:
  %offered = call i32 @sched_yield()
  br label %look
end:
  ret i32 0
}
