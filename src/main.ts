#!/usr/bin/env node

/*
 * The command. It imports nothing at its top: an old Node fails on an import that it lacks before
 * any code runs, and could not say what it needs.
 */

/**
 * As `engines` in package.json says. The parser of Node 20 before 20.19.2 reads lines as headers
 * that other programs read otherwise, so a client could smuggle requests (CVE-2025-23167). The
 * first versions of Node 22 and 23 do not start the service.
 */
const NEEDED = 'Node 20.19.2 or later, 22.11.0 or later, or 24 or later is needed'

const [major = 0, minor = 0, patch = 0] = process.versions.node.split('.').map(Number)
const is20 = major === 20 && (minor > 19 || (minor === 19 && patch >= 2))
const is22 = major === 22 && minor >= 11
if (is20 || is22 || major >= 24) {
  void import('./cli/command-line.ts')
} else {
  process.stderr.write(`plant-store: ${NEEDED}, and this is ${process.versions.node}\n`)
  process.exitCode = 2
}
