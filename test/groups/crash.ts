import '../faults/crash-states.test.ts'
