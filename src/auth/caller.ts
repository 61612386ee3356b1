/** Who sent a request, as a verified token says. */
export interface Caller {
  readonly owner: string
  readonly scopes: ReadonlySet<string>
}
