#!/usr/bin/env node

/*
 * The command. It imports nothing at its top: an old Node fails on an import that it lacks before
 * any code runs, and could not say what it needs.
 */

/** The first major and minor version that works, as `engines` in package.json says. */
const NEEDED = [20, 15] as const

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number)
if (major > NEEDED[0] || (major === NEEDED[0] && minor >= NEEDED[1])) {
  void import('./cli/command-line.ts')
} else {
  const found = `this is ${process.versions.node}`
  process.stderr.write(`plant-store: Node ${NEEDED.join('.')} or later is needed, and ${found}\n`)
  process.exitCode = 2
}
