import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from './release.ts'

export function read(name: string): string {
  return readFileSync(join(ROOT, name), 'utf8')
}

/** The cells of a document's table whose first heading is given. */
export function tableOf(name: string, heading: string): string[][] {
  const lines = read(name).split('\n')
  const start = lines.findIndex((line) => line.startsWith(`| ${heading} |`))
  assert.notEqual(start, -1, `${name} has no table of ${heading}`)
  const rows: string[][] = []
  for (const line of lines.slice(start + 2)) {
    if (!line.startsWith('|')) break
    rows.push(
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    )
  }
  return rows
}
