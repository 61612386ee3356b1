#!/usr/bin/env node

/*
 * The command. Signals first. All that imports anything is imported later: an old Node fails on an
 * import that it lacks before any code runs, and could not say what it needs.
 */
import './cli/signals.ts'
import { runtimeRefusal } from './runtime.ts'

const refusal = runtimeRefusal()
if (refusal === undefined) {
  void import('./cli/command-line.ts')
} else {
  process.stderr.write(`plant-store: ${refusal.message}\n`)
  process.exitCode = refusal.status
}
