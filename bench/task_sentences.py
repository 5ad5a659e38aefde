"""What people and agents ask for, in their words, and which tools of public servers would do it.

Written from what the tools do, not from what they say. The search was developed with the first
ones, so their figures flatter it. Those that are held out were written afterwards, for tools
chosen by lot; which of them failed was never looked at, but their totals were known when the share
of words beside meaning was chosen. A tool is named `server.tool`, with `*` for any; several of
them are alternatives.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal["person", "agent"]


class TaskSentence(msgspec.Struct, frozen=True):
    """A wish, and what would fulfil it."""

    kind: Kind
    text: str
    right: tuple[str, ...]
    held_out: bool


_PERSON: Final = """
what's in the folder with my tax papers? = filesystem.list_directory* filesystem.directory_tree
jot this down in a text file on my disk = filesystem.write_file
find everything named invoice on my computer = filesystem.search_files
when was this spreadsheet on my disk last touched and how big is it = filesystem.get_file_info
put the pictures into another folder = filesystem.move_file
keep in mind that our landlord likes tea = memory.add_observations memory.create_entities
what do you still know about our landlord? = memory.search_nodes memory.open_nodes memory.read_graph
forget what I told you about my old boss = memory.delete_*
I found a bug, tell the maintainers on github = github.create_issue
has anybody on github already complained about this crash? = github.search_issues github.list_issues
I'd like my own copy of that open source project = *.fork_repository
land Tom's change on github = github.merge_pull_request
let everyone in the team chat know the site is back = slack.slack_post_message *.send_message
what did people write in the general room today = slack.slack_get_channel_history *.get_messages
give her message a thumbs up on slack = slack.slack_add_reaction
who is in our slack anyway = slack.slack_get_users
snap a picture of what the web page looks like = *.browser_take_screenshot *.take_screenshot
press the blue buy button on the site = *.browser_click *.click
write my name into the box on the website = *.browser_type *.type_text *.*fill*
go back to the site I was on before = *.browser_navigate_back *.navigate_page
why is this site so slow to open? = *.performance_* *.lighthouse_audit
how do I get from the station to the museum on foot = google-maps.maps_directions
is there a good sushi place around here? = google-maps.maps_search_places
how long would it take by car from Lyon to Nice = *.maps_distance_matrix *.maps_directions
how high up is this village = google-maps.maps_elevation
what's the street address at these coordinates = *.maps_reverse_geocode
it's 3pm in Tokyo, what is that here? = time.convert_time
what's the clock say in Denver right now = time.get_current_time
look on the internet for the newest iPhone rumours = *.tavily_search *.firecrawl_search
pull all the text off this homepage = *.firecrawl_scrape *.tavily_extract fetch.fetch
drop my landlord an email about the leak = *.send_gmail_message *.draft_gmail_message *.send-mail
did the bank write to me this week? = *.search_gmail_messages *.list-mail-messages
put lunch with Sam on my calendar for Thursday = *.manage_event *.create-*event
am I free tomorrow afternoon? = *.query_freebusy *.get_events *.get-freebusy *.list-events
start a new sheet for the club's budget = *.create_spreadsheet
put these three numbers under the last line of my sheet = *.append_table_rows *.modify_sheet_values
swap the old company name for the new one everywhere in the contract = *.find_and_replace_doc
make a slide deck for Monday = *.create_presentation
what's Julia's phone number? = *.search_contacts *.get_contact *.list_contacts
turn my document into a PDF = *.export_doc_to_pdf
make a questionnaire for the guests = *.create_form
what have people answered to my survey so far = *.list_form_responses *.get_form_response
note that I worked three hours on this ticket = *.jira_add_worklog
hand this ticket over to Priya = *.jira_assign_issue *.jira_update_issue
what's planned for the current two-week cycle = *.jira_get_sprint* *.jira_get_board_issues
who edited this wiki page, and how = *.confluence_get_page_hist* *.confluence_get_page_diff
put a new page about onboarding into our wiki = *.confluence_create_page* *.API-post-page
throw out that wiki page nobody reads = *.confluence_delete_page
who wrote this awful line of code? = gitlab.get_file_blame
say yes to Ana's merge request = gitlab.approve_merge_request
tick off all my gitlab reminders at once = gitlab.mark_all_todos_done
what have I changed in my working copy since the last save to git? = *.git_diff* *.git_status
show me what happened in the project's git lately = *.git_log *.list_commits
our shop's pods keep dying, what do they print? = *.kubectl_logs *.pods_log
we need more copies of the web server in the cluster = *.kubectl_scale
how many orders are in the mongo database = mongodb.count mongodb.aggregate
what errors did our users run into since yesterday = sentry.search_issues sentry.search_events
put a remark under this notion page = notion.API-create-a-comment
which customers do we have in the crm from Berlin = hubspot.hubspot-*-objects
what colours and spacing did the designer use in this file = figma.get_figma_data
"""

_AGENT: Final = """
Obtain the textual content of a local document at a known location = filesystem.read_*file*
Substitute a passage inside an existing local source file = filesystem.edit_file
Produce a recursive hierarchy of a local folder = filesystem.directory_tree
Determine which parts of the disk are accessible = filesystem.list_allowed_directories
Persist a new person and company into long-term knowledge = memory.create_entities
Record that two remembered things are connected = memory.create_relations
Dump the complete knowledge store = memory.read_graph
Propose merging a feature branch into main on GitHub = github.create_pull_request
Enumerate proposed changes awaiting review in a GitHub project = github.list_pull_requests
Store several changed source files in one commit on a remote = *.push_files
Leave feedback on a GitHub proposal and request changes = github.create_pull_request_review
Locate usages of a function across public codebases = *.search_code *.*_search_github
Respond inside an existing Slack conversation = slack.slack_reply_to_thread
Look up a Slack colleague's title and status = slack.slack_get_user_profile
Upload an attachment through a web form in the browser = *.browser_file_upload *.upload_file
Execute custom JavaScript in the loaded site = *.browser_evaluate *.evaluate_script
Inspect HTTP traffic made by the loaded site = *.browser_network_request* *.*network_request*
Dismiss the confirmation popup shown by the site = *.browser_handle_dialog *.handle_dialog
Pick an entry from a dropdown on the site = *.browser_select_option *.fill
Pause until certain words appear in the browser = *.browser_wait_for *.wait_for
Collect script warnings and errors printed by the site = *.*console_message*
Take a dump of the site's memory usage = *.take_heapsnapshot
Resolve a postal address to latitude and longitude = google-maps.maps_geocode
Retrieve opening hours and reviews of a venue = google-maps.maps_place_details
Look up current API documentation of a programming framework = context7.*
Discover every URL belonging to a domain = *.firecrawl_map *.tavily_map
Traverse an entire site and collect its contents = *.firecrawl_crawl *.tavily_crawl
Get notified whenever a web page changes = *.firecrawl_monitor_create
Find scientific publications on a subject = *.firecrawl_research_search_papers
Compile a thorough report on a subject from many web sources = *.tavily_research *.firecrawl_agent
Label a bunch of emails at once = *.batch_modify_gmail_message_labels
Save a reply without sending it yet = *.draft_gmail_message
Automatically sort incoming mail by rules = *.manage_gmail_filter
Grant a colleague access to a cloud file = *.manage_drive_access *.set_drive_file_permissions
Announce absence with an automatic reply in the calendar = *.manage_out_of_office
Extract cell contents from a workbook range = *.read_sheet_values
Highlight cells depending on their value = *.manage_conditional_formatting
Check off an entry of the to-do list as finished = *.manage_task *.mark_todo_done
Advance a ticket to its next workflow state = *.jira_transition_issue
Query tickets with a filter expression = *.jira_search
Tie a ticket to its larger initiative = *.jira_link_to_epic *.jira_create_issue_link
Plan a new iteration on the agile board = *.jira_create_sprint
Raise a support request on behalf of a client = *.jira_create_customer_request
Measure how many people read a wiki article = *.confluence_get_page_views
Limit who may read a wiki article = *.confluence_set_page_restrictions
Check syntax of a CI pipeline definition = gitlab.validate_*ci_lint
Shield a branch against direct pushes = gitlab.protect_branch
Determine whether a merge request collides with its target = gitlab.get_merge_request_conflicts
Add files to the staging area = *.git_add
Switch the working copy to another line of development = *.git_checkout
Execute a shell command within a running container = *.exec_in_pod *.pods_exec
Undo the latest release of a workload in the cluster = *.kubectl_rollout *.helm_rollback
Deploy a packaged chart into the cluster = *.install_helm_chart *.helm_install
Insert several records into a document collection = mongodb.insert-many meilisearch.add-documents
Speed up lookups by a field in a Mongo collection = mongodb.create-index
Infer the structure of records in a Mongo collection = mongodb.collection-schema
Full-text lookup in a search index = meilisearch.search *.search
Mark a production error as fixed = sentry.update_issue
Register a call or note with a CRM contact = hubspot.hubspot-create-engagement
Amend values of several CRM entries together = hubspot.hubspot-batch-update-objects
Export graphics from a design as image files = figma.download_figma_images
Retrieve rows of a Notion database satisfying a condition = notion.API-query-data-source
Reason through a difficult problem step by step = sequential-thinking.*
"""

_HELD_PERSON: Final = """
what's 17 plus 25? = everything.get-sum
I need a fresh container for user profiles in mongo = mongodb.create-collection
start a discussion on Kim's gitlab merge request = gitlab.create_*note gitlab.create_*thread
look at the watched website straight away instead of waiting = firecrawl.firecrawl_monitor_run
what kinds of tickets can I make in this jira project = atlassian.jira_get_project_issue_types
catch my github pull request up with main = github.update_pull_request_branch
let people push straight to that branch again on gitlab = gitlab.unprotect_branch
show me all my google sheets = google-workspace.list_spreadsheets
read me that whole mail exchange with the plumber = *.get_gmail_thread*_content*
block two hours so I can concentrate tomorrow = *.manage_focus_time *.manage_event
which gitlab account am I using? = gitlab.whoami gitlab.get_user*
comment on just this sentence of the confluence page = atlassian.confluence_add_inline_comment
which files does that github pull request touch = github.get_pull_request_files
give me the photos that are on this confluence page = atlassian.confluence_get_page_images
take that paragraph out of my notion page = notion.API-delete-a-block
film what happens in the browser while I test = chrome-devtools.screencast_start
why does this mongo lookup take forever = mongodb.explain
set up a new empty project on gitlab = gitlab.create_repository
which versions of our product are in jira = atlassian.jira_get_project_versions
oops, I don't want those files in the next commit after all = git-reference.git_reset
what does our marketing automation in hubspot do, which flows exist = hubspot.hubspot-*-workflow*
how full is the mongo database = mongodb.db-stats mongodb.collection-storage-size
make me a folder called receipts on this computer = filesystem.create_directory
move this notion page under another one = notion.API-move-page
shrink the browser to phone size = *.browser_resize *.resize_page *.emulate
hit enter on the web page = *.browser_press_key *.press_key
which tabs have I got open in chrome = *.list_pages *.browser_tabs
take off the label urgent from the issue tracker's labels, gitlab = gitlab.delete_label
make the column a bit wider in my sheet = *.resize_sheet_dimensions *.format_sheet_range
who's watching this jira ticket = atlassian.jira_get_issue_watchers
"""

_HELD_AGENT: Final = """
Rate the usefulness of an earlier web lookup = *.firecrawl_*feedback
Determine current configuration of a page watcher = *.firecrawl_monitor_get *.firecrawl_monitor_list
Look up the internal id of a custom Jira attribute = atlassian.jira_*_fields
Invoke a procedure of an Apps Script deployment = google-workspace.run_script_function
Alter attributes such as status of a Notion document = notion.API-patch-page
Host an attachment to embed in GitLab text = gitlab.upload_markdown
Reveal process settings available to the server = everything.get-env
Change several slides in one go = google-workspace.batch_update_presentation
Examine how an Elastic index is distributed over nodes = elasticsearch.get_shards
Show permitted choices of a Jira dropdown = atlassian.jira_get_field_options
Check background jobs of the Meilisearch instance = meilisearch.get-task*
Find out which permissions the CRM token carries = hubspot.hubspot-get-user-details
Enumerate Sentry tenants available to me = sentry.find_organizations
Rename a CRM attribute's display label = hubspot.hubspot-update-property
Terminate a tunnel to a cluster service = kubernetes.stop_port_forward
Erase all documents matching a condition in Mongo = mongodb.delete-many
Obtain the differences between two GitLab branches = gitlab.get_branch_diffs
Retrieve review remarks left on GitHub = github.get_pull_request_comments *.*_request_reviews
Create a link by which anyone opens a Drive file = *.*_drive_shareable_link *.*_drive_access
Apply a YAML manifest to the cluster = kubernetes.kubectl_apply kubernetes.kubectl_create
Drop an obsolete search index = meilisearch.delete-index mongodb.drop-index
Inspect events and state of a failing pod = *.kubectl_describe *.kubectl_get *.kubectl_logs
Duplicate a cloud document = google-workspace.copy_drive_file
Post an answer to a wiki discussion = *.confluence_reply_to_comment *.confluence_add_comment
Attach a screenshot to a wiki article = atlassian.confluence_upload_attachment*
List direct descendants of a wiki article = *.*_page_children *.*_page_tree
Combine two cells' worth of text into a document table = *.create_table_with_data *.insert_doc_*
Move the pointer above a menu without pressing = *.browser_hover *.hover
Read response body of one request the page made = *.browser_network_request *.get_network_request
Compress a file for transfer = everything.gzip-file-as-resource
"""


def _read(kind: Kind, text: str, *, held_out: bool = False) -> list[TaskSentence]:
    found = []
    for line in text.strip().splitlines():
        sentence, _, right = line.rpartition(" = ")
        found.append(TaskSentence(kind, sentence, tuple(right.split()), held_out))
    return found


TASKS: Final = (
    *_read("person", _PERSON),
    *_read("agent", _AGENT),
    *_read("person", _HELD_PERSON, held_out=True),
    *_read("agent", _HELD_AGENT, held_out=True),
)
