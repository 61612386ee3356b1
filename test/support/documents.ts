import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from './release.ts'

export function read(name: string): string {
  return readFileSync(join(ROOT, name), 'utf8')
}

/** The text of a document below a heading, up to the next one. */
export function sectionOf(name: string, heading: string): string {
  const sections = read(name).split(/^#+ /m)
  const found = sections.find((each) => each.startsWith(`${heading}\n`))
  return found ?? assert.fail(`${name} has no ${heading}`)
}

/** The code of a file below a heading of a document: its first line is a comment with its name. */
export function codeOf(name: string, heading: string, file: string): string {
  const blocks = sectionOf(name, heading).matchAll(/^```(?:[jt]s|java|py)\n([\s\S]*?)^```/gm)
  const codes = [...blocks].map(([, code = '']) => code)
  const found = codes.find((code) => code.replace(/^(?:\/\/ |""")/, '').startsWith(file))
  return found ?? assert.fail(`${heading} has no ${file}`)
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
